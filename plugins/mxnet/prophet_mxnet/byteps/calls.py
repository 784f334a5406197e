"""The program's calls of BytePS's push_pull that have not returned.

Rule of this file: no MXNet and no BytePS, so that exchange.py can use it too.

byteps.mxnet opens a tensor's keys in the thread that first hands over the tensor, and this thread waits for all workers
(`InitTensor`). Every other call returns at once, and leaves a task that the hook sees. So a thread inside a call is
waiting for other workers. MXNet has no handles that would show this.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import ParamSpec

P = ParamSpec("P")

_callers: set[int] = set()
"""Threads inside a call. A set, since a count would need a lock."""


def watched(push_pull: Callable[P, None]) -> Callable[P, None]:
    """Return the function, wrapped so that `under_way` knows its calls."""

    @functools.wraps(push_pull)
    def call(*args: P.args, **kwargs: P.kwargs) -> None:
        caller = threading.get_ident()
        _callers.add(caller)
        try:
            push_pull(*args, **kwargs)
        finally:
            _callers.discard(caller)

    return call


def under_way() -> bool:
    """Return True if a call has not returned yet. Thread-safe."""
    return bool(_callers)


def forget() -> None:
    """Forget calls after a suspend: a thread still inside a call waits for an engine that is gone."""
    _callers.clear()
