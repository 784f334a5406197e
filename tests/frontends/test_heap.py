"""Free pages of the heap go back to the machine, where the C library is glibc."""

from __future__ import annotations

import ctypes
import resource
from pathlib import Path

import pytest

from prophet.frontends import heap

PIECE_BYTES, PIECES = 100_000, 600
"""Less than what glibc takes from elsewhere than its heap."""


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize()


def test_free_pages_go_back_that_lie_between_what_is_in_use() -> None:
    trim = heap.find_trim()
    if trim is None:
        pytest.skip("the C library is not glibc")
    libc = ctypes.CDLL(None)
    libc.malloc.argtypes, libc.malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
    libc.free.argtypes = [ctypes.c_void_p]
    trim(0)
    pieces = []
    for _ in range(PIECES):
        pieces.append((libc.malloc(PIECE_BYTES), libc.malloc(64)))
        ctypes.memset(pieces[-1][0], 1, PIECE_BYTES)
    for piece, _ in pieces:
        libc.free(piece)
    before = resident_bytes()
    trim(0)
    given_bytes = before - resident_bytes()
    for _, small in pieces:
        libc.free(small)
    assert given_bytes > PIECE_BYTES * PIECES / 2


def test_a_process_that_has_come_to_what_it_needs_is_left_alone() -> None:
    growth = heap.HeapGrowth()
    looks = [100, 150, 400, 390, 400, 410, 420, 400]  # what the first call gave back is needed again
    assert [growth.grown(mb << 20) for mb in looks] == [False, False, True, *[False] * 5]


def test_what_grows_and_grows_gives_back_each_time_that_it_has_grown_by_a_quarter() -> None:
    growth = heap.HeapGrowth()
    looks = [200, 250, 300, 320, 205, 255, 310, 321, 210]
    assert [growth.grown(mb << 20) for mb in looks] == [False, False, False, True, False, False, False, True, False]


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    assert heap.find_trim() is None
    heap.keep_small.__wrapped__()
