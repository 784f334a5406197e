"""Keys that are opened ahead: when they leave, that all are opened, and the call that opens one."""

from __future__ import annotations

import ctypes
import ctypes.util
import logging
import random
import threading
from pathlib import Path

import pytest
import torch

from plugins.byteps.test_hook import OLD_STRINGS
from prophet_byteps.torch import opening
from prophet_byteps.torch.opening import MOST_IN_FLIGHT, SPREAD_ROUNDS, Key, Opening, Pace, finish_all, initializer_of
from support.fake_core import build_core

LIMIT_S = 30.0
"""For what happens in another thread."""


def begun(pace: Pace, idle: bool) -> int:
    """Keys that leave one after another, each open before the next."""
    count = 0
    while pace.may_begin(idle):
        pace.end(pace.begin())
        count += 1
    return count


def test_on_an_idle_wire_keys_leave_one_after_another() -> None:
    assert begun(Pace([1000] * 50), idle=True) == 50


def test_on_a_busy_wire_a_share_of_them_leaves_in_each_round() -> None:
    pace = Pace([1000] * 100)
    left = [begun(pace, idle=False)]
    while pace.left:
        pace.rounds += 1
        left.append(begun(pace, idle=False))
    assert left[0] == 0, "not in the round that has just begun"
    assert len(left) == SPREAD_ROUNDS + 1 and sum(left) == 100
    assert max(left) - min(left[1:]) <= 1
    assert pace.over


def test_what_left_in_gaps_need_not_leave_later() -> None:
    pace = Pace([1000] * 100)
    for _ in range(60):
        pace.end(pace.begin())
    pace.rounds = SPREAD_ROUNDS // 2
    assert begun(pace, idle=False) == 0
    assert begun(pace, idle=True) == 40


def test_only_so_many_bytes_are_on_the_wire_and_always_one_key() -> None:
    pace = Pace([MOST_IN_FLIGHT // 2] * 3 + [4 * MOST_IN_FLIGHT] * 2)
    assert [pace.may_begin(idle=True) and pace.begin() for _ in range(3)] == [0, 1, False]
    pace.end(1)
    assert pace.may_begin(idle=True) and pace.begin() == 2
    pace.end(0)
    assert not pace.may_begin(idle=True), "a large key goes alone"
    pace.end(2)
    assert pace.may_begin(idle=True) and pace.begin() == 3
    assert not pace.may_begin(idle=True) and not pace.over


@pytest.mark.parametrize("seed", range(20))
def test_workers_with_gaps_of_their_own_open_all_keys(seed: int) -> None:
    """A key is open when all workers have sent it, so each waits for the others, and none for ever."""
    chance = random.Random(seed)
    sizes = [chance.choice([4096, MOST_IN_FLIGHT // 2, 3 * MOST_IN_FLIGHT]) for _ in range(40)]
    paces = [Pace(sizes) for _ in range(3)]
    sent: list[set[int]] = [set() for _ in paces]
    for _ in range(10_000):
        worker = chance.randrange(3)
        pace = paces[worker]
        if chance.random() < 0.1:
            pace.rounds += 1
        if not pace.may_begin(idle=chance.random() < 0.2):
            continue
        number = pace.begin()
        sent[worker].add(number)
        if all(number in others for others in sent):
            for other in paces:
                other.end(number)
    assert all(pace.over for pace in paces)


def keys(count: int) -> list[Key]:
    return [Key(f"prophet.block.0.{number}", torch.zeros(1024)) for number in range(count)]


class Wire:
    """In place of BytePS: keys arrive, and stay unopened until the test lets them."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.arrival = threading.Semaphore(0)
        self.answer = threading.Semaphore(0)
        self.busy = threading.Event()

    def open_key(self, key: Key) -> None:
        self.sent.append(key.name)
        self.arrival.release()
        assert self.answer.acquire(timeout=LIMIT_S)

    def idle(self) -> bool:
        return not self.busy.is_set()


def test_keys_are_opened_while_nobody_waits_for_them() -> None:
    wire = Wire()
    subject = Opening(keys(3), wire.open_key, wire.idle)
    for _ in range(3):
        assert wire.arrival.acquire(timeout=LIMIT_S)
    assert sorted(wire.sent) == [key.name for key in keys(3)]
    assert not subject.done
    for _ in range(3):
        wire.answer.release()
    assert subject.finish(LIMIT_S) and subject.done


def test_a_busy_wire_has_its_rounds_and_the_end_of_a_job_waits_for_nothing() -> None:
    wire = Wire()
    wire.busy.set()
    for _ in range(2 * SPREAD_ROUNDS):
        wire.answer.release()
    subject = Opening(keys(2 * SPREAD_ROUNDS), wire.open_key, wire.idle)
    for number in range(1, SPREAD_ROUNDS):
        subject.round_begins()
        for _ in range(2):
            assert wire.arrival.acquire(timeout=LIMIT_S)
        assert len(wire.sent) == 2 * number
    assert not subject.done
    assert finish_all(LIMIT_S) and subject.done
    assert len(wire.sent) == 2 * SPREAD_ROUNDS


def test_the_end_of_a_job_does_not_wait_for_a_worker_that_is_gone() -> None:
    wire = Wire()
    subject = Opening(keys(1), wire.open_key, wire.idle)
    assert wire.arrival.acquire(timeout=LIMIT_S)
    assert not subject.finish(0.0)
    wire.answer.release()
    assert subject.finish(LIMIT_S)


def test_a_failure_is_one_warning_and_leaves_keys_to_their_first_pushes(caplog: pytest.LogCaptureFixture) -> None:
    def fail(key: Key) -> None:
        raise ValueError("no such type")

    with caplog.at_level(logging.WARNING, "prophet"):
        subject = Opening(keys(5), fail, lambda: True)
        assert subject.finish(LIMIT_S)
    assert [record.message for record in caplog.records] == [
        "Prophet opens keys as they are used: ValueError: no such type"
    ]


@pytest.mark.parametrize("macros", [(), (OLD_STRINGS,)], ids=["new-strings", "old-strings"])
def test_the_call_names_the_tensor_and_its_bytes_in_either_abi(macros: tuple[str, ...], tmp_path: Path) -> None:
    library = build_core(tmp_path, *macros)
    open_key = initializer_of(library)
    assert open_key is not None
    core = ctypes.CDLL(str(library))
    core.core_opened.restype = ctypes.c_char_p
    for number, (dtype, kind) in enumerate(opening._TYPES.items()):
        tensor = torch.zeros(number + 3, dtype=dtype)
        open_key(Key(f"prophet.block.{number}", tensor))
        size, type_, data = ctypes.c_size_t(), ctypes.c_int(), ctypes.c_void_p()
        name = core.core_opened(ctypes.byref(size), ctypes.byref(type_), ctypes.byref(data))
        assert name == f"byteps.prophet.block.{number}".encode()
        assert (size.value, type_.value, data.value) == (tensor.nbytes, kind, tensor.data_ptr())


def test_a_library_without_the_function_opens_nothing_ahead() -> None:
    assert initializer_of(Path(ctypes.util.find_library("c") or "libc.so.6")) is None
