"""The C library's heap during a job: keep freed pages for the next iteration, and give back the excess.

Rule of this file: the calls to the C library, if it has them, and when to make them. It depends on no engine. The
thread that calls `look` is in turning.py.

Gradients of 128 KiB to 32 MiB come from glibc's heap, aligned to 64 bytes. The hole left by a freed gradient is too
small for the next of the same size, unless a neighbour is free as well (glibc bug 14581). Under Prophet, work in
progress holds small neighbours. So the next gradient takes other pages, and the heap grows to many times the memory in
use, though nothing leaks: docs/decisions/free-pages.md.

Left alone, glibc gives back only the end of the heap, whenever twice the largest freed piece is free there. Training
frees that much in each iteration and takes it again in the next, page by page.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable, Mapping

import psutil

GROWN = 1.25
"""Growth that makes the next call worthwhile: this factor over the size after the last call, plus LEAST_BYTES. A call
takes 0.1 ms per MB given back. A job that reuses the same pages reaches its size within one look, and then needs no
more calls."""
LEAST_BYTES = 64 << 20

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Option numbers from malloc.h."""
KEPT_BYTES = 1 << 30
"""Maximum free bytes kept at the heap's end. glibc gives back more than that at once."""
LARGEST_BYTES = 32 << 20
"""Largest piece on the heap. Larger pieces are mapped separately, as in a process that has freed one of this size.
glibc stops adapting both sizes once either is set, and accepts no larger value."""


class HeapGrowth:
    """Growth of a process's memory, to decide when its heap should give back free pages."""

    def __init__(self) -> None:
        self._settled_bytes: int | None = None
        """Resident bytes one look after the last call, or at the first look; None until the next look sets it."""

    def grown(self, resident_bytes: int) -> bool:
        """Take a look. Return True if it is time to call."""
        if self._settled_bytes is None:
            self._settled_bytes = resident_bytes
            return False
        if resident_bytes <= GROWN * self._settled_bytes + LEAST_BYTES:
            return False
        self._settled_bytes = None
        return True


def find_trim() -> Callable[[int], int]:
    """Return glibc's malloc_trim. Raises AttributeError or OSError on any other C library."""
    trim = ctypes.CDLL(None).malloc_trim
    trim.argtypes, trim.restype = [ctypes.c_size_t], ctypes.c_int
    return trim  # type: ignore[no-any-return]


def told_by_environment(environment: Mapping[str, str]) -> bool:
    """Return True if the user has set an option of glibc's heap, which then takes precedence."""
    tunables = environment.get("GLIBC_TUNABLES", "")
    return "glibc.malloc." in tunables or any(name.startswith("MALLOC_") for name in environment)


@functools.cache
def keep_end() -> None:
    """Keep up to KEPT_BYTES of freed memory at the heap's end for the next iteration, from now on.

    Raises AttributeError or OSError on a C library other than glibc.
    """
    if told_by_environment(os.environ):
        return
    set_option = ctypes.CDLL(None).mallopt
    set_option.argtypes, set_option.restype = [ctypes.c_int, ctypes.c_int], ctypes.c_int
    if set_option(M_MMAP_THRESHOLD, LARGEST_BYTES):  # Without it, the other option would do harm.
        set_option(M_TRIM_THRESHOLD, KEPT_BYTES)


def resident_bytes() -> int:
    """Return the resident bytes of this process."""
    resident: int = psutil.Process().memory_info().rss
    return resident


_growth = HeapGrowth()


def look() -> None:
    """Give free pages back if the process has grown. The first look also calls `keep_end`. Raises AttributeError or
    OSError on a C library other than glibc.
    """
    trim = find_trim()
    keep_end()
    if _growth.grown(resident_bytes()):
        trim(0)
