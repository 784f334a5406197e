"""Free pages of the heap go back to the machine, where the C library is glibc."""

from __future__ import annotations

import ctypes
import resource
from pathlib import Path

import pytest

from prophet.frontends.turning import find_trim, keep_heap_small

PIECE_BYTES, PIECES = 100_000, 600
"""Less than what glibc takes from elsewhere than its heap."""


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize()


def test_free_pages_go_back_that_lie_between_what_is_in_use() -> None:
    trim = find_trim()
    if trim is None:
        pytest.skip("the C library is not glibc")
    libc = ctypes.CDLL(None)
    libc.malloc.argtypes, libc.malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
    libc.free.argtypes = [ctypes.c_void_p]
    trim(0)
    pieces = [libc.malloc(PIECE_BYTES) for _ in range(2 * PIECES)]
    for piece in pieces:
        ctypes.memset(piece, 1, PIECE_BYTES)
    for piece in pieces[::2]:  # The others keep them apart.
        libc.free(piece)
    before = resident_bytes()
    trim(0)
    given_bytes = before - resident_bytes()
    for piece in pieces[1::2]:
        libc.free(piece)
    assert given_bytes > PIECE_BYTES * PIECES / 2


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    assert find_trim() is None
    keep_heap_small.__wrapped__()
