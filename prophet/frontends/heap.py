"""The C library's heap while Prophet has a job: free pages go back to the machine now and then.

Rule of this file: that call, where the C library has it, and when it is made. Nothing of it depends on an engine.

Gradients of 128 KiB to 32 MiB come from the heap of glibc, aligned to 64 bytes. What such an allocation leaves when it
is freed is too small for the next of the same size, unless a neighbour is free as well (glibc's bug 14581), and what is
under way under Prophet holds small neighbours. So the next gradient takes other pages and the heap becomes many times
what is in use, though nothing is lost: docs/decisions/free-pages.md.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable

from prophet.frontends.ending import at_end
from prophet.frontends.turning import TurningThread

TRIM_S = 10.0
"""Seconds between two calls. Each takes 0.1 ms for a MB that it gives back, and 1 ms where there is little."""
END_LIMIT_S = 1.0


def find_trim() -> Callable[[int], int] | None:
    """glibc's malloc_trim; None where the C library is another."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return None
    trim.argtypes, trim.restype = [ctypes.c_size_t], ctypes.c_int
    return trim  # type: ignore[no-any-return]


@functools.cache
def keep_small() -> None:
    """From now on, in a thread of its own, free pages of the heap are given back. Once in a process; never an error."""
    trim = find_trim()
    if trim is not None:
        thread = TurningThread(lambda: trim(0), lambda: TRIM_S, lambda error: None, name="prophet-heap")
        thread.start()
        at_end(lambda: thread.end(END_LIMIT_S))
