"""The C library's heap while Prophet has a job: free pages go back to the machine where they have become many.

Rule of this file: that call, where the C library has it, and when it is made. Nothing of it depends on an engine.
turning.py has the thread that looks.

Gradients of 128 KiB to 32 MiB come from the heap of glibc, aligned to 64 bytes. What such an allocation leaves when it
is freed is too small for the next of the same size, unless a neighbour is free as well (glibc's bug 14581), and what is
under way under Prophet holds small neighbours. So the next gradient takes other pages and the heap becomes many times
what is in use, though nothing is lost: docs/decisions/free-pages.md.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import psutil

GROWN = 1.25
"""So many times what the process had after the last call, and LEAST_BYTES more, are worth the next one. A call takes
0.1 ms for a MB that it gives back; a job that takes the same pages again and again comes to what it needs within a
look, and from then on there is no call."""
LEAST_BYTES = 64 << 20


class HeapGrowth:
    """When a process's memory has grown so far that its heap is to give back what is free."""

    def __init__(self) -> None:
        self._settled_bytes: int | None = None
        """What was resident one look after the last call, or at the first look. None: the next look is to say so."""

    def grown(self, resident_bytes: int) -> bool:
        """One look. Whether to call."""
        if self._settled_bytes is None:
            self._settled_bytes = resident_bytes
            return False
        if resident_bytes <= GROWN * self._settled_bytes + LEAST_BYTES:
            return False
        self._settled_bytes = None
        return True


def find_trim() -> Callable[[int], int]:
    """glibc's malloc_trim. Raises AttributeError or OSError where the C library is another."""
    trim = ctypes.CDLL(None).malloc_trim
    trim.argtypes, trim.restype = [ctypes.c_size_t], ctypes.c_int
    return trim  # type: ignore[no-any-return]


def resident_bytes() -> int:
    """Of this process."""
    resident: int = psutil.Process().memory_info().rss
    return resident


_growth = HeapGrowth()


def look() -> None:
    """Gives free pages back, if the process has grown. Raises AttributeError or OSError where that cannot be."""
    trim = find_trim()
    if _growth.grown(resident_bytes()):
        trim(0)
