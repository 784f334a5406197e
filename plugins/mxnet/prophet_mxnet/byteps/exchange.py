"""Pages of bytes through byteps.mxnet, and the program's calls of BytePS's push_pull that have not returned.

Rule of this file: the edges of prophet_byteps/agreement.py in MXNet.

byteps.mxnet opens a tensor's keys in the thread that first hands over the tensor, and this thread waits for all workers
(`InitTensor`). Every other call returns at once, and leaves a task that the hook sees. So a thread inside a call is
waiting for other workers. MXNet has no handles that would show this.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, ParamSpec

from prophet_byteps.agreement import PAGE_BYTES, Answer

P = ParamSpec("P")

_callers: set[int] = set()
"""Threads inside a call. A set, since a count would need a lock."""


def watched(push_pull: Callable[P, None]) -> Callable[P, None]:
    """Return the function, wrapped so that `MXNetExchange.under_way` knows its calls."""

    @functools.wraps(push_pull)
    def call(*args: P.args, **kwargs: P.kwargs) -> None:
        caller = threading.get_ident()
        _callers.add(caller)
        try:
            push_pull(*args, **kwargs)
        finally:
            _callers.discard(caller)

    return call


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
        answer = Future[bytes]()

        def travel() -> None:
            try:
                self._ops.byteps_push_pull(array, name=name, priority=0, is_average=False)
                answer.set_result(array.asnumpy().tobytes())
            except Exception as error:
                answer.set_exception(error)

        thread = threading.Thread(target=travel, name="prophet-agreement", daemon=True)
        thread.start()
        self._travelling = {other for other in self._travelling if other.is_alive()} | {thread}
        return lambda: answer.result() if answer.done() else None

    def under_way(self) -> bool:
        return bool(_callers)

    def pages_under_way(self) -> bool:
        return any(thread.is_alive() for thread in self._travelling)

    def begin_anew(self) -> None:
        self._travelling = set()
        _callers.clear()  # a thread still inside a call waits for an engine that is gone
