"""The program's calls of BytePS's push_pull that have not returned.

Rule of this file: no MXNet and no BytePS, so that exchange.py can ask as well.

byteps.mxnet opens a tensor's keys in the thread that hands the tensor over for the first time, and that waits for all
workers (`InitTensor`). Every other call returns at once, and what it handed over is a task that the hook sees. So who
is in a call waits for others, and MXNet has no handles that could say so.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import ParamSpec

P = ParamSpec("P")

_callers: set[int] = set()
"""Threads that are in a call; a set, since a count of several threads would need a lock."""


def watched(push_pull: Callable[P, None]) -> Callable[P, None]:
    """The function, of whose calls `under_way` then knows."""

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
    """Whether a call has yet to return. From any thread."""
    return bool(_callers)


def forget() -> None:
    """After a suspend: who is in a call still, waits for an engine that is gone."""
    _callers.clear()
