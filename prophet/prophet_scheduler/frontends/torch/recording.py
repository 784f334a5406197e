"""Operations that may outlast an observer of the job: torch's profiler, or Python's tracemalloc.

Rule of this file: what a profiler sees of Prophet, and workarounds for two bugs elsewhere that would hit a collective
that nothing waits for.

An operation's observer writes into the profiler's memory when the operation ends, even after the profiler has stopped
and freed that memory. Without Prophet, torch crashes in the same way if a collective outlasts its profiler. Profilers
observe torch's RecordFunction, and a switch per thread hides operations from it.

A torch thread that calls Python creates a Python thread state for each call, and waits for the GIL while holding memory
allocated for that state. If a thread does so, `tracemalloc.stop()` crashes before Python 3.12.9 (gh-128679). A thread
that keeps the state of its first call avoids this.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
import threading
from collections.abc import Callable, Iterator

import torch

_switch: Callable[[bool], None] = vars(torch.autograd)["_enable_record_function"]
_profiled: Callable[[], bool] = vars(torch.autograd)["_profiler_enabled"]
_IS_ON = "_ZN2at23isRecordFunctionEnabledEv"
"""Symbol of at::isRecordFunctionEnabled(), which torch does not expose to Python."""


def _find() -> Callable[[], bool]:
    try:
        is_on = ctypes.PyDLL(torch._C.__file__)[_IS_ON]
    except (OSError, AttributeError):
        return lambda: True
    is_on.restype = ctypes.c_bool
    return is_on


_is_on = _find()


@contextlib.contextmanager
def unrecorded() -> Iterator[None]:
    """Hide operations that this thread starts within the context from profilers, even their parts in other threads."""
    before = _is_on()
    _switch(False)
    try:
        yield
    finally:
        _switch(before)


def shown(does: str, what: object) -> contextlib.AbstractContextManager[object]:
    """Return a context that is shown in this thread's profiler under that name; nearly free if no profiler runs."""
    if not _profiled():
        return contextlib.nullcontext()
    return torch.autograd.profiler.record_function(f"{does} {what}")


_here = threading.local()
_STOPS_SAFELY = sys.version_info >= (3, 13, 2) or (3, 12, 9) <= sys.version_info < (3, 13)


def keep_thread_state() -> None:
    """Keep the Python thread state of this torch thread between calls, for the rest of its life."""
    if not (_STOPS_SAFELY or hasattr(_here, "kept")):
        _here.kept = ctypes.pythonapi.PyGILState_Ensure()
