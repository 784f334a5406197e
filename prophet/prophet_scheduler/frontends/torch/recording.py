"""Operations that may outlast an observer of the job: a profiler of torch's, or Python's trace of memory.

Rule of this file: what a profiler sees of Prophet, and two faults of others, which a collective that nobody waits for
would run into.

The observer of an operation writes into the profiler's memory when the operation ends, even after the profiler has
stopped and freed that memory. torch itself crashes so where a collective outlasts its profiler. Profilers observe
torch's RecordFunction, and this thread's switch of it keeps operations from them.

A torch thread that calls Python creates its Python thread state at each call, and waits for the interpreter with memory
in hand for it. `tracemalloc.stop()` crashes before Python 3.12.9 (gh-128679) where a thread does. A thread that keeps
the state of its first call does not.
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
"""Symbol of at::isRecordFunctionEnabled(), which torch does not offer to Python."""


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
    """Hide from profilers what this thread starts within the context, and how it goes on in other threads."""
    before = _is_on()
    _switch(False)
    try:
        yield
    finally:
        _switch(before)


def shown(does: str, what: object) -> contextlib.AbstractContextManager[object]:
    """Show the context in this thread's profiler under that name. Nearly free where none runs."""
    if not _profiled():
        return contextlib.nullcontext()
    return torch.autograd.profiler.record_function(f"{does} {what}")


_here = threading.local()
_STOPS_SAFELY = sys.version_info >= (3, 13, 2) or (3, 12, 9) <= sys.version_info < (3, 13)


def keep_thread_state() -> None:
    """Keep the Python state of this thread, which torch made, from one call to the next, for good."""
    if not (_STOPS_SAFELY or hasattr(_here, "kept")):
        _here.kept = ctypes.pythonapi.PyGILState_Ensure()
