"""The decision that all ranks hold: what it is made of, and that all take it up before the same round."""

from __future__ import annotations

import itertools
import queue
import random
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prophet_ddp.control import PACES, TRIED_ROUNDS, Control, Decision
from prophet_ddp.events import EventLog
from prophet_ddp.issuer import Issuer, JointOperation, RankGroups
from prophet_scheduler.core.cut import EARLY_ROUNDS, RECUT_ROUNDS, UNIT_BYTES, Cut
from support.collectives import Operation, Wire


class ThreadedWire(Wire):
    """Wire that ends operations in a thread of its own, as gloo does, as soon as all ranks have submitted them."""

    def __init__(self, ranks: int) -> None:
        super().__init__(ranks, lambda rank, number: 0.0)
        self._lock = threading.Lock()
        self._ends: queue.Queue[Any] = queue.Queue()
        self._thread = threading.Thread(target=self._deliver, daemon=True)
        self._thread.start()

    def submit(self, rank: int, connection: int, mine: Operation) -> Any:
        with self._lock:
            return super().submit(rank, connection, mine)

    def at(self, delay_s: float, action: Any) -> None:
        self._ends.put(action)

    def close(self) -> None:
        self._ends.put(None)
        self._thread.join(30)

    def _deliver(self) -> None:
        while (action := self._ends.get()) is not None:
            action()


@given(seed=st.integers(0, 1 << 32), ranks=st.integers(1, 4))
@settings(max_examples=25, deadline=None)
def test_all_ranks_take_up_the_same_before_the_same_round(seed: int, ranks: int) -> None:
    wire = ThreadedWire(ranks)
    wanted: list[Decision] = []
    taken: list[list[tuple[int, Decision]]] = [[] for _ in range(ranks)]
    failed: list[BaseException] = []
    rounds = EARLY_ROUNDS + 30

    def rank_main(rank: int) -> None:
        chance = random.Random(seed)
        issuer = Issuer(RankGroups(wire.groups[rank]), EventLog(open=False))
        control = Control(issuer, rank, ranks)

        def wait(operation: JointOperation) -> None:
            while not operation.done:
                issuer.wait_activity(30.0)

        try:
            for number in range(rounds):
                decision = control.round_begins(wait)
                if decision is not None:
                    taken[rank].append((number, decision))
                # Only the word of the first rank counts.
                if chance.random() < 0.3:
                    order = list(range(chance.randint(1, 9)))
                    chance.shuffle(order)
                    another = Decision(Cut.uniform(UNIT_BYTES * (number + 1)), tuple(order))
                    if rank == 0:
                        wanted.append(another)
                    control.want(another if rank == 0 else Decision(Cut.uniform(UNIT_BYTES), (0,)))
                issuer.append(control.round_ends())
            assert issuer.quiet(30.0)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=rank_main, args=(rank,), daemon=True) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    assert not any(thread.is_alive() for thread in threads)
    wire.close()
    assert failed == []
    assert all(rows == taken[0] for rows in taken)
    numbers = [number for number, _ in taken[0]]
    assert all(
        number <= EARLY_ROUNDS or number % RECUT_ROUNDS == 0 or number - before <= TRIED_ROUNDS
        for before, number in itertools.pairwise([-TRIED_ROUNDS, *numbers])
    )
    places = [wanted.index(decision) for _, decision in taken[0]]
    assert places == sorted(places), "the newest that was wanted by then"


def waiting_for(wire: Wire) -> Callable[[JointOperation], None]:
    """Return a rank's way to wait on a wire that carries at once all that is there."""

    def wait(operation: JointOperation) -> None:
        wire.run()
        assert operation.done

    return wait


def test_what_is_wanted_again_is_not_sent_again() -> None:
    wire = Wire(1, lambda rank, number: 0.0)
    issuer = Issuer(RankGroups(wire.groups[0]), EventLog(open=False))
    control = Control(issuer, 0, 1)
    decision = Decision(Cut.uniform(UNIT_BYTES), (0,))
    wait = waiting_for(wire)
    came = []
    for _ in range(4 * RECUT_ROUNDS + 1):
        came.append(control.round_begins(wait))
        control.want(decision)
        issuer.append(control.round_ends())
    assert [each for each in came if each is not None] == [decision]
    assert came[1] == decision


def test_after_the_first_rounds_a_page_comes_every_few() -> None:
    wire = Wire(1, lambda rank, number: 0.0)
    control = Control(Issuer(RankGroups(wire.groups[0]), EventLog(open=False)), 0, 1)
    pages = [number for number in range(1, EARLY_ROUNDS + 3 * RECUT_ROUNDS + 1) if control.round_ends()]
    assert pages == [
        *range(1, EARLY_ROUNDS + 1),
        *range(EARLY_ROUNDS + RECUT_ROUNDS, EARLY_ROUNDS + 3 * RECUT_ROUNDS + 1, RECUT_ROUNDS),
    ]


def test_after_a_decision_the_next_page_is_sent_when_it_is_asked_for_and_others_follow() -> None:
    wire = Wire(1, lambda rank, number: 0.0)
    issuer = Issuer(RankGroups(wire.groups[0]), EventLog(open=False))
    control = Control(issuer, 0, 1)
    wait = waiting_for(wire)
    pages, sent, taken = [], [], 0
    for number in range(1, EARLY_ROUNDS + 4 * RECUT_ROUNDS + 1):
        if number == EARLY_ROUNDS + RECUT_ROUNDS:
            control.want(Decision(Cut.uniform(UNIT_BYTES), (0,)))
        before = len(wire.submitted()[0])
        if control.round_begins(wait) is not None:
            taken = number
        sent.append((number, len(wire.submitted()[0]) - before))
        operations = control.round_ends()
        pages += [number] if operations else []
        issuer.append(operations)
    assert taken == EARLY_ROUNDS + RECUT_ROUNDS + 1
    # The decision itself, and the page of its first round when the second begins.
    assert [row for row in sent if row[1]] == [(taken, 1), (taken + 1, 1)]
    late = [number for number in pages if number >= taken]
    assert late[: TRIED_ROUNDS - 1] == list(range(taken + 1, taken + TRIED_ROUNDS))
    assert all(number % RECUT_ROUNDS == 0 for number in late[TRIED_ROUNDS - 1 :])


def test_a_turn_is_said_once_on_each_rank() -> None:
    wire = Wire(1, lambda rank, number: 0.0)
    issuer = Issuer(RankGroups(wire.groups[0]), EventLog(open=False))
    control = Control(issuer, 0, 1)
    wait = waiting_for(wire)
    said = []
    for number in range(6):
        assert control.round_begins(wait) is None
        said.append((control.turn, control.bucket_bytes if control.turn else 0))
        control.turn = 0
        if number in (1, 3):
            control.want_turn(7, number << 20)
        if number == 4:
            control.want_turn(-1)
        issuer.append(control.round_ends())
    assert said == [(0, 0), (0, 0), (7, 1 << 20), (0, 0), (7, 3 << 20), (-1, 0)]


def test_each_rank_hears_how_much_longer_the_slowest_computes() -> None:
    wire = ThreadedWire(3)
    paces: dict[int, float] = {}

    def rank_main(rank: int) -> None:
        issuer = Issuer(RankGroups(wire.groups[rank]), EventLog(open=False))
        control = Control(issuer, rank, 3)

        def wait(operation: JointOperation) -> None:
            while not operation.done:
                issuer.wait_activity(30.0)

        for number in range(PACES):
            control.round_begins(wait)
            late_s = 5.0 if number == 1 else 0.0  # a single late round, which says nothing
            issuer.append(control.round_ends((0.2, 0.26, 0.13)[rank] + late_s))
        control.round_begins(wait)
        paces[rank] = control.pace

    threads = [threading.Thread(target=rank_main, args=(rank,), daemon=True) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    wire.close()
    assert paces == pytest.approx({0: 1.3, 1: 1.0, 2: 2.0})
