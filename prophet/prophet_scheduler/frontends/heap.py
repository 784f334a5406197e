"""The C library's heap while Prophet has a job: what one iteration frees is there for the next, and free pages go back
to the machine where they have become many.

Rule of this file: these calls, where the C library has them, and when they are made. Nothing of it depends on an
engine. turning.py has the thread that looks.

Gradients of 128 KiB to 32 MiB come from the heap of glibc, aligned to 64 bytes. What such an allocation leaves when it
is freed is too small for the next of the same size, unless a neighbour is free as well (glibc's bug 14581), and what is
under way under Prophet holds small neighbours. So the next gradient takes other pages and the heap becomes many times
what is in use, though nothing is lost: docs/decisions/free-pages.md.

By itself glibc gives back only the heap's end, whenever twice the largest piece that was freed is free there. Training
frees that much in each iteration and takes it again in the next, page by page.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable, Mapping

import psutil

GROWN = 1.25
"""So many times what the process had after the last call, and LEAST_BYTES more, are worth the next one. A call takes
0.1 ms for a MB that it gives back; a job that takes the same pages again and again comes to what it needs within a
look, and from then on there is no call."""
LEAST_BYTES = 64 << 20

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Of malloc.h."""
KEPT_BYTES = 1 << 30
"""So many free bytes stay at the heap's end. More than that are given back at once, as glibc does."""
LARGEST_BYTES = 32 << 20
"""Larger pieces have pages of their own, as they have in a process that has freed one of this size. glibc finds no
size itself any more once it was told one of the two, and takes none that is larger."""


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


def told_by_environment(environment: Mapping[str, str]) -> bool:
    """Whether the program's user has set something of glibc's heap, which then holds."""
    tunables = environment.get("GLIBC_TUNABLES", "")
    return "glibc.malloc." in tunables or any(name.startswith("MALLOC_") for name in environment)


@functools.cache
def keep_end() -> None:
    """What is freed at the heap's end stays there for the next iteration, up to KEPT_BYTES, from now on. Raises
    AttributeError or OSError where the C library is another than glibc.
    """
    if told_by_environment(os.environ):
        return
    set_option = ctypes.CDLL(None).mallopt
    set_option.argtypes, set_option.restype = [ctypes.c_int, ctypes.c_int], ctypes.c_int
    if set_option(M_MMAP_THRESHOLD, LARGEST_BYTES):  # Without it the other one would be worse than nothing.
        set_option(M_TRIM_THRESHOLD, KEPT_BYTES)


def resident_bytes() -> int:
    """Of this process."""
    resident: int = psutil.Process().memory_info().rss
    return resident


_growth = HeapGrowth()


def look() -> None:
    """The first one keeps the heap's end. Gives free pages back, if the process has grown. Raises AttributeError or
    OSError where that cannot be.
    """
    trim = find_trim()
    keep_end()
    if _growth.grown(resident_bytes()):
        trim(0)
