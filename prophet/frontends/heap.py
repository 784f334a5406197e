"""The C library's heap while Prophet has a job: free pages go back to the machine where they have become many.

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

import psutil

from prophet.frontends.ending import at_end
from prophet.frontends.turning import TurningThread

LOOK_S = 10.0
"""Seconds between two looks at the process's memory. A call takes 0.1 ms for a MB that it gives back."""
GROWN = 1.25
"""So many times what the process had after the last call, and LEAST_BYTES more, are worth the next one. A job that
takes the same pages again and again comes to what it needs within a look, and from then on there is no call."""
LEAST_BYTES = 64 << 20
END_LIMIT_S = 1.0


class HeapGrowth:
    """When a process's memory has grown so far that its heap is to give back what is free."""

    def __init__(self) -> None:
        self._settled_bytes: int | None = None
        """What was resident one look after the last call, or at the first look. None: this look is to say so."""

    def grown(self, resident_bytes: int) -> bool:
        """One look. Whether to call."""
        if self._settled_bytes is None:
            self._settled_bytes = resident_bytes
            return False
        if resident_bytes <= GROWN * self._settled_bytes + LEAST_BYTES:
            return False
        self._settled_bytes = None
        return True


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
    if trim is None:
        return
    growth, process = HeapGrowth(), psutil.Process()

    def look() -> None:
        if growth.grown(process.memory_info().rss):
            trim(0)

    thread = TurningThread(look, lambda: LOOK_S, lambda error: None, name="prophet-heap")
    thread.start()
    at_end(lambda: thread.end(END_LIMIT_S))
