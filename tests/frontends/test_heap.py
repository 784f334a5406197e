"""Tests that freed memory stays for the next iteration, and that many free pages of the heap go back to the machine,
if the C library is glibc.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import textwrap
from types import SimpleNamespace

import pytest

from prophet_scheduler.frontends import heap
from prophet_scheduler.frontends.heap import HeapGrowth, find_trim, resident_bytes, told_by_environment

PIECE_BYTES, PIECES = 100_000, 600
"""Smaller than the pieces that glibc takes from outside its heap."""


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
    monkeypatch.setattr(heap, "keep_end", lambda: None)
    monkeypatch.setattr(heap, "resident_bytes", lambda: next(resident) << 20)
    for _ in range(3):
        heap.look()
    assert calls == [0]


ITERATIONS = """
    import ctypes, resource
    from prophet_scheduler.frontends import heap

    libc = ctypes.CDLL(None)
    libc.malloc.argtypes, libc.malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
    libc.free.argtypes = [ctypes.c_void_p]

    def faults_of_an_iteration():
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        pieces = [libc.malloc(4 << 20) for _ in range(20)]
        for piece in pieces:
            ctypes.memset(piece, 1, 4 << 20)
        for piece in pieces:
            libc.free(piece)
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    for _ in range(2):
        faults_of_an_iteration()
    without = faults_of_an_iteration()
    heap.keep_end()
    faults_of_an_iteration()
    print(without, faults_of_an_iteration())
"""


def faults_without_and_with(**environment: str) -> tuple[int, int]:
    """Return how many of an iteration's 20,480 pages are taken anew, before and after keep_end()."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_TUNABLES"))}
    program = [sys.executable, "-c", textwrap.dedent(ITERATIONS)]
    done = subprocess.run(program, env=ours | environment, capture_output=True, text=True, check=True)
    without, with_it = map(int, done.stdout.split())
    return without, with_it


@pytest.fixture
def glibc() -> None:
    if not hasattr(ctypes.CDLL(None), "mallopt"):
        pytest.skip("the C library is not glibc")


def test_what_an_iteration_frees_is_there_for_the_next_one(glibc: None) -> None:
    without, with_it = faults_without_and_with()
    assert without > 10_000
    assert with_it < 100


def test_a_heap_that_the_user_has_set_is_left_as_it_is(glibc: None) -> None:
    without, with_it = faults_without_and_with(MALLOC_TRIM_THRESHOLD_="1000000")
    assert min(without, with_it) > 10_000


@pytest.mark.parametrize(
    ("environment", "told"),
    [
        ({}, False),
        ({"GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2"}, False),
        ({"GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2:glibc.malloc.trim_threshold=1000"}, True),
        ({"MALLOC_TRIM_THRESHOLD_": "1000"}, True),
        ({"MALLOC_ARENA_MAX": "2"}, True),
    ],
)
def test_what_the_environment_says_of_the_heap(environment: dict[str, str], told: bool) -> None:
    assert told_by_environment(environment) is told


def test_without_the_size_of_pieces_the_end_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeping the end would stop glibc's own search for sizes: small pieces would have pages of their own for good."""
    calls: list[int] = []

    def refusing(option: int, value: int) -> int:
        calls.append(option)
        return 0

    monkeypatch.setattr(heap, "told_by_environment", lambda environment: False)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace(mallopt=refusing))
    heap.keep_end.__wrapped__()
    assert calls == [heap.M_MMAP_THRESHOLD]
