"""Pages of bytes through byteps.mxnet.

Rule of this file: the edges of prophet_byteps/agreement.py in MXNet.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

from prophet_byteps.agreement import PAGE_BYTES, Answer
from prophet_mxnet.byteps import calls


class MXNetExchange:
    """Pages through byteps.mxnet. Each has a thread, since a push waits for all workers in the calling thread."""

    def __init__(self, bps: Any) -> None:
        self._ops: Any = sys.modules[f"{bps.__name__}.ops"]
        self._pages: dict[str, Any] = {}
        self._travelling: set[threading.Thread] = set()

    def declare(self, name: str) -> None:
        self._ops.byteps_declare_tensor(name)

    def send(self, name: str, page: bytes) -> Answer:
        import mxnet as mx
        import numpy as np

        if name not in self._pages:
            self._pages[name] = mx.nd.zeros((PAGE_BYTES,), ctx=mx.cpu(), dtype="uint8")
        array = self._pages[name]
        array[:] = mx.nd.array(np.frombuffer(page, np.uint8), ctx=mx.cpu(), dtype="uint8")
        array.wait_to_read()
        answers: list[bytes | Exception] = []

        def travel() -> None:
            try:
                self._ops.byteps_push_pull(array, name=name, priority=0, is_average=False)
                answers.append(array.asnumpy().tobytes())
            except Exception as error:
                answers.append(error)

        def answer() -> bytes | None:
            if not answers:
                return None
            if isinstance(answers[0], Exception):
                raise answers[0]
            return answers[0]

        thread = threading.Thread(target=travel, name="prophet-agreement", daemon=True)
        thread.start()
        self._travelling = {other for other in self._travelling if other.is_alive()} | {thread}
        return answer

    def under_way(self) -> bool:
        return calls.under_way()

    def pages_under_way(self) -> bool:
        return any(thread.is_alive() for thread in self._travelling)

    def begin_anew(self) -> None:
        self._travelling = set()
        calls.forget()
