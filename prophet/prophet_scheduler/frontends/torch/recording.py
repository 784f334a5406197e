"""Operations that may outlast what looks at the job: a profiler of torch's, or Python's trace of memory.

Rule of this file: two faults of others, that a collective which nobody waits for would run into.

The observer of an operation writes into the profiler's memory when the operation ends, be it after the profiler has
stopped and given that memory back: torch itself crashes so where a collective outlasts the profiler under which it was
issued. This thread's switch of torch's RecordFunction, which profilers observe, keeps operations from them.

A thread of torch's that calls Python gets its state of Python's at each call, and waits for the interpreter with memory
in hand for it. `tracemalloc.stop()` crashes before Python 3.12.9 (gh-128679) where a thread does. One that keeps the
state which it had at its first call does not.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
import threading
from collections.abc import Callable, Iterator

import torch

_switch: Callable[[bool], None] = vars(torch.autograd)["_enable_record_function"]
_IS_ON = "_ZN2at23isRecordFunctionEnabledEv"
"""at::isRecordFunctionEnabled(), which torch does not offer to Python."""


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
    """Within it no profiler sees what this thread starts, nor how that goes on in other threads."""
    before = _is_on()
    _switch(False)
    try:
        yield
    finally:
        _switch(before)


_here = threading.local()
_STOPS_SAFELY = sys.version_info >= (3, 13, 2) or (3, 12, 9) <= sys.version_info < (3, 13)


def keep_thread_state() -> None:
    """Lets this thread, which torch made, keep its state of Python's from one call to the next, for good."""
    if not (_STOPS_SAFELY or hasattr(_here, "kept")):
        _here.kept = ctypes.pythonapi.PyGILState_Ensure()
