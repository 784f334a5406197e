"""Operations that torch's profiler must not see, since they may outlast it.

Rule of this file: this thread's switch of torch's RecordFunction, which profilers observe. The observer of an operation
writes into the profiler's memory when the operation ends, be it after the profiler has stopped and given that memory
back: torch itself crashes so where a collective outlasts the profiler under which it was issued.
"""

from __future__ import annotations

import contextlib
import ctypes
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
