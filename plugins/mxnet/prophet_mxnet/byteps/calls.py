"""Calls of BytePS's push_pull by the program that have not returned.

Rule of this file: no MXNet and no BytePS, so that exchange.py can ask as well.

byteps.mxnet opens a tensor's keys in the thread that first hands the tensor over, and that waits for all workers
(`InitTensor`). Every other call returns at once, and hands over a task that the hook sees. So a thread in a call waits
for others, and MXNet has no handles that could say so.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import ParamSpec

P = ParamSpec("P")

_callers: set[int] = set()
"""Threads in a call. A set, since a count would need a lock."""


def watched(push_pull: Callable[P, None]) -> Callable[P, None]:
    """Return the function, with its calls known to `under_way`."""

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
    """True if a call has yet to return. From any thread."""
    return bool(_callers)


def forget() -> None:
    """Forget calls after a suspend: a thread still in one waits for an engine that is gone."""
    _callers.clear()
