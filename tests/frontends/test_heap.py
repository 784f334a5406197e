"""Free pages of the heap go back to the machine, where the C library is glibc."""

from __future__ import annotations

import ctypes

import pytest

from prophet.frontends import heap
from prophet.frontends.heap import HeapGrowth, find_trim, resident_bytes

PIECE_BYTES, PIECES = 100_000, 600
"""Less than what glibc takes from elsewhere than its heap."""


def test_free_pages_go_back_that_lie_between_what_is_in_use() -> None:
    try:
        trim = find_trim()
    except AttributeError:
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


def test_a_process_that_has_come_to_what_it_needs_is_left_alone() -> None:
    growth = HeapGrowth()
    looks = [100, 150, 400, 390, 400, 410, 420, 400]  # what the first call gave back is needed again
    assert [growth.grown(mb << 20) for mb in looks] == [False, False, True, *[False] * 5]


def test_what_grows_and_grows_gives_back_each_time_that_it_has_grown_by_a_quarter() -> None:
    growth = HeapGrowth()
    looks = [200, 250, 300, 320, 205, 255, 310, 321, 210]
    assert [growth.grown(mb << 20) for mb in looks] == [False, False, False, True, False, False, False, True, False]


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    with pytest.raises(AttributeError):  # which ends the looks
        heap.look()


def test_a_look_calls_where_the_process_has_grown(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    resident = iter([100, 400, 200])
    monkeypatch.setattr(heap, "_growth", HeapGrowth())
    monkeypatch.setattr(heap, "find_trim", lambda: calls.append)
    monkeypatch.setattr(heap, "resident_bytes", lambda: next(resident) << 20)
    for _ in range(3):
        heap.look()
    assert calls == [0]
