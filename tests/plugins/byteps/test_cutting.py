"""Agreed cuts over a sum that the test makes: the same cut on every worker in every round, whoever is late."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prophet_byteps import agreement
from prophet_byteps.agreement import PAGE_BYTES
from prophet_byteps.cutting import (
    MOST_ROWS,
    NO_REASON,
    NOTHING,
    CutBoard,
    CutControl,
    Reason,
    Wish,
    cut_from,
    encode_page,
    networks_of_page,
    wish_of_page,
)
from prophet_scheduler.core.cut import MOST_SEGMENTS, RECUT_ROUNDS, UNIT_BYTES, Cut, Refusal, Segment
from prophet_scheduler.core.network import Network
from prophet_scheduler.core.settings import DEFAULT_PARTITION_BYTES
from support.exchanges import Line, Server, summed

SIZES = [300_000, 5_000_000, 12_000]
SMALL, LARGE = Cut.uniform(128 * 1024), Cut.uniform(1 << 20)
STEPPED = Cut((Segment(0, 128 * 1024), Segment(UNIT_BYTES * 7, 4_096_000)))


class Worker:
    """One worker's board and control, and what it did in each round."""

    def __init__(self, server: Server, rank: int, number: int = 0, fixed: Cut | None = None) -> None:
        self.rank = rank
        self.board = CutBoard(fixed, lambda sizes: SMALL if rank == 0 else STEPPED)
        self.line = Line(server, rank)
        self.control = CutControl(self.board, number, self.line, rank, server.workers)
        self.control.declare()
        self.cuts: list[Cut] = []

    def refuse(self, why_not: Callable[[Cut], str]) -> None:
        """Have the front end refuse cuts."""
        begins = self.control.round_begins
        self.control.round_begins = functools.partial(begins, why_not)  # type: ignore[method-assign]

    def run(self, rounds: int, before: Callable[[int], None] = lambda number: None) -> Iterator[None]:
        """Stops wherever another worker may move."""
        self.control.ask(SIZES)
        cut = self.control.first()
        for number in range(rounds):
            yield
            cut = self.control.round_begins() or cut
            self.cuts.append(cut)
            assert self.board.in_force.cut == cut
            before(number)
            yield
            self.control.round_ends()


class Turns:
    """Lets workers move one at a time in an order that the seed gives; a worker that waits lets others move."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
        self.random = random.Random(seed)
        self.idle: list[Iterator[None]] = []
        self.waits = 0
        monkeypatch.setattr(agreement, "wait", self.wait)

    def wait(self, done: Callable[[], bool], what: str, limit_s: float | None = None) -> bool:
        self.waits += 1
        while not done():
            assert self.idle, f"all workers wait, one for {what}"
            self.move()
        return True

    def move(self) -> None:
        worker = self.idle.pop(self.random.randrange(len(self.idle)))
        if next(worker, self) is not self:
            self.idle.append(worker)

    def play(self, *workers: Iterator[None]) -> None:
        self.idle.extend(workers)
        while self.idle:
            self.move()


def job(
    monkeypatch: pytest.MonkeyPatch, seed: int, workers: int, fixed: Cut | None = None
) -> tuple[Turns, list[Worker]]:
    turns, server = Turns(monkeypatch, seed), Server(workers)
    return turns, [Worker(server, rank, fixed=fixed) for rank in range(workers)]


@st.composite
def cuts(draw: st.DrawFn) -> Cut:
    starts = sorted(draw(st.sets(st.integers(1, 1 << 20), max_size=30)))
    sizes = st.integers(1, 1000)
    return Cut(tuple(Segment(start * UNIT_BYTES, draw(sizes) * UNIT_BYTES) for start in [0, *starts]))


networks = st.builds(Network, st.floats(1024, 2.0**40, width=32), st.floats(0, 1, width=32), st.floats(0, 1, width=32))


wishes = st.builds(Wish, st.none() | cuts(), st.none() | st.integers(1, (1 << 64) - 1))


@given(st.integers(1, 20), wishes, st.data())
def test_a_sum_of_pages_has_what_is_wanted_and_everyones_network(workers: int, wish: Wish, data: st.DataObject) -> None:
    said = data.draw(st.lists(st.none() | networks, min_size=workers, max_size=workers))
    pages = [encode_page(rank, NOTHING if rank else wish, network) for rank, network in enumerate(said)]
    page = summed(pages)
    assert wish_of_page(page) == wish
    assert networks_of_page(page) == tuple(network for network in said if network is not None)


def test_workers_beyond_the_rows_of_a_page_say_nothing() -> None:
    network = Network(1e8)
    assert networks_of_page(encode_page(MOST_ROWS - 1, NOTHING, network)) == (network,)
    assert encode_page(MOST_ROWS, NOTHING, network) == bytes(PAGE_BYTES)


@given(cuts(), st.integers(0, 1 << 21), st.integers(0, 1 << 21))
def test_a_cut_from_a_place_on_has_the_same_blocks_there(cut: Cut, place: int, further: int) -> None:
    later = cut_from(cut, place * UNIT_BYTES)
    assert later.block_bytes_at(further * UNIT_BYTES) == cut.block_bytes_at((place + further) * UNIT_BYTES)


@pytest.mark.parametrize("seed", range(40))
def test_every_worker_has_the_same_cut_in_every_round(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    turns = Turns(monkeypatch, seed)
    server = Server(1 + seed % 4)
    group = [Worker(server, rank) for rank in range(server.workers)]
    for worker in group:
        worker.board.measured(Network(1e6 * (1 + worker.rank)))

    def want(worker: Worker) -> Callable[[int], None]:
        # Each wants something of its own all the time; rank 0's counts.
        return lambda number: worker.board.want(turns.random.choice([SMALL, LARGE, STEPPED]))

    rounds = 10 * RECUT_ROUNDS
    turns.play(*(worker.run(rounds, want(worker)) for worker in group))
    assert len({tuple(worker.cuts) for worker in group}) == 1
    assert group[0].cuts[0] == SMALL, "the first is rank 0's"
    changes = [number for number in range(1, rounds) if group[0].cuts[number] != group[0].cuts[number - 1]]
    assert changes
    assert all(number % RECUT_ROUNDS == 0 for number in changes)
    assert {worker.board.in_force.recuts for worker in group} == {len(changes)}
    expected = tuple(Network(1e6 * (1 + rank)) for rank in range(server.workers))
    assert all(worker.board.networks == expected for worker in group)
    assert turns.waits > 0 or server.workers == 1
    assert server.declared[0] == ["prophet.cut.0.0", "prophet.cut.0.1"]


def test_a_page_has_room_for_the_longest_cut_and_its_credit() -> None:
    longest = Cut(tuple(Segment(UNIT_BYTES * place, UNIT_BYTES) for place in range(MOST_SEGMENTS)))
    wish = Wish(longest, (1 << 64) - 1)
    assert wish_of_page(encode_page(0, wish, Network(1e8))) == wish


def test_every_worker_has_the_credit_of_the_cut_from_the_same_round_on(monkeypatch: pytest.MonkeyPatch) -> None:
    turns, group = job(monkeypatch, 7, 3)
    credits: list[list[int | None]] = [[] for _ in group]

    def before(worker: Worker) -> Callable[[int], None]:
        def note_and_want(number: int) -> None:
            credits[worker.rank].append(worker.board.in_force.credit)
            if number == 0:
                worker.board.want(LARGE, Reason("larger", 0.5), 1000 + worker.rank)
            if number == RECUT_ROUNDS:
                worker.board.want(None, credit=2000 + worker.rank)
            if number == 2 * RECUT_ROUNDS:
                worker.board.want(SMALL)  # of which no credit is known

        return note_and_want

    turns.play(*(worker.run(4 * RECUT_ROUNDS, before(worker)) for worker in group))
    assert credits[0] == credits[1] == credits[2]
    assert credits[0] == [None] * RECUT_ROUNDS + [1000] * RECUT_ROUNDS + [2000] * 2 * RECUT_ROUNDS
    assert group[1].board.in_force.recuts == 2


def test_a_fixed_cut_sends_nothing_and_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    turns, group = job(monkeypatch, 0, 2, fixed=LARGE)
    for worker in group:
        worker.board.want(SMALL)
    turns.play(*(worker.run(3 * RECUT_ROUNDS) for worker in group))
    assert group[0].cuts == [LARGE] * 3 * RECUT_ROUNDS
    assert (group[0].line.server.sent, group[0].line.server.declared) == ([], [[], []])
    assert (group[0].board.in_force.cut, group[0].board.in_force.recuts) == (LARGE, 0)


def test_a_machine_without_room_keeps_the_sizes_of_all(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each key has a file in shared memory, and a process dies if it finds no room when it writes one."""
    turns, group = job(monkeypatch, 3, 3)
    rooms: list[int | None] = [None, 1 << 40, 4 * sum(SIZES) + (1 << 20)]
    for worker in group:
        worker.control._room = lambda rank=worker.rank: rooms[rank]  # type: ignore[misc]

    def before(number: int) -> None:
        if number == 0:
            group[0].board.want(LARGE)
        if number == RECUT_ROUNDS:
            rooms[2] = 4 * sum(SIZES) - (1 << 20)
            group[0].board.want(STEPPED)
        if number == 2 * RECUT_ROUNDS:
            group[0].board.want(SMALL)

    turns.play(group[0].run(4 * RECUT_ROUNDS, before), *(worker.run(4 * RECUT_ROUNDS) for worker in group[1:]))
    assert group[0].cuts == group[1].cuts == group[2].cuts
    assert set(group[0].cuts) == {SMALL, LARGE}, "what was in use before needs no room"
    assert STEPPED not in group[0].cuts
    assert group[0].cuts[-1] == SMALL
    what = "cannot be used: other sizes need 10 MiB of /dev/shm, and a worker's machine has 19 MiB left"
    assert f"blocks of 128 and 4000 KiB {what}" in caplog.text
    assert [worker.board.refusals for worker in group] == [(Refusal(STEPPED, what.partition(": ")[2], True),)] * 3
    assert group[0].board.refused == (f"blocks of 128 and 4000 KiB {what}",)


def test_a_refusal_ends_when_there_is_room_again(monkeypatch: pytest.MonkeyPatch) -> None:
    turns, group = job(monkeypatch, 3, 2)
    rooms: list[int | None] = [1 << 20, None]
    for worker in group:
        worker.control._room = lambda rank=worker.rank: rooms[rank]  # type: ignore[misc]
    refused: list[int] = []

    def before(number: int) -> None:
        group[0].board.want(LARGE)
        refused.append(len(group[0].board.refusals))
        if number == 3 * RECUT_ROUNDS:
            rooms[0] = 1 << 40

    turns.play(group[0].run(6 * RECUT_ROUNDS, before), group[1].run(6 * RECUT_ROUNDS))
    assert refused == [0] * RECUT_ROUNDS + [1] * 3 * RECUT_ROUNDS + [0] * 2 * RECUT_ROUNDS
    assert group[0].cuts == group[1].cuts
    assert group[0].cuts[-1] == LARGE


def test_a_front_end_that_cannot_cut_so_keeps_the_cut_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    turns, group = job(monkeypatch, 3, 2)
    for worker in group:
        worker.refuse(lambda cut: "no names" if cut == LARGE else "")

    def before(number: int) -> None:
        if number < 2 * RECUT_ROUNDS:
            group[0].board.want(LARGE, NO_REASON, 1000)
        else:
            group[0].board.want(STEPPED)

    turns.play(group[0].run(4 * RECUT_ROUNDS, before), group[1].run(4 * RECUT_ROUNDS))
    assert group[0].cuts == group[1].cuts
    assert set(group[0].cuts) == {SMALL, STEPPED}
    assert [worker.board.refusals for worker in group] == [(Refusal(LARGE, "no names"),)] * 2
    assert [worker.board.in_force.recuts for worker in group] == [1, 1], "what was refused is none"
    assert [worker.board.in_force.credit for worker in group] == [None, None], "nor is its credit taken up"


def test_the_size_stays_without_an_exchange() -> None:
    board = CutBoard(None)
    board.want(LARGE)
    control = CutControl(board, 0, None, 0, 2)
    control.declare()
    control.ask(SIZES)
    assert control.first() == Cut.uniform(DEFAULT_PARTITION_BYTES)
    for _ in range(2 * RECUT_ROUNDS):
        assert control.round_begins() is None
        control.round_ends()
    assert board.in_force.cut == Cut.uniform(DEFAULT_PARTITION_BYTES)


def test_an_invalid_cut_causes_one_warning_and_the_cut_stays_on_all(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    turns, group = job(monkeypatch, 1, 3)

    def break_pages(number: int) -> None:
        group[0].board.want(LARGE)
        group[0].line.server.noise = b"\xff" * PAGE_BYTES

    turns.play(*(worker.run(5 * RECUT_ROUNDS, break_pages) for worker in group))
    assert all(worker.cuts == [SMALL] * 5 * RECUT_ROUNDS for worker in group)
    assert len(caplog.records) == 3, "one a process"
    assert "blocks stay as they are" in caplog.text
    assert group[1].board.networks == ()


def test_a_second_optimizer_cuts_its_own_part_of_what_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    turns, server = Turns(monkeypatch, 2), Server(2)
    boards = [CutBoard(None, lambda sizes: SMALL) for _ in range(2)]
    wanted = Cut((Segment(0, 128 * 1024), Segment(UNIT_BYTES * 50, 1 << 20), Segment(UNIT_BYTES * 90, 256 * 1024)))
    begun: list[tuple[Cut, Cut]] = []

    def worker(rank: int) -> Iterator[None]:
        generator, critic = (CutControl(boards[rank], number, Line(server, rank), rank, 2) for number in range(2))
        for control in (generator, critic):
            control.declare()
        generator.ask(SIZES)
        first = generator.first()
        boards[rank].want(wanted)
        yield
        critic.ask(SIZES, base=60)
        begun.append((first, critic.first()))

    turns.play(worker(0), worker(1))
    from_there_on = Cut((Segment(0, 1 << 20), Segment(UNIT_BYTES * 30, 256 * 1024)))
    assert begun == [(SMALL, from_there_on)] * 2
    assert boards[1].in_force.cut == SMALL, "the first optimizer's"


def test_all_workers_begin_anew_after_a_resume(monkeypatch: pytest.MonkeyPatch) -> None:
    turns, group = job(monkeypatch, 3, 2)
    turns.play(*(worker.run(RECUT_ROUNDS + 1) for worker in group))
    before = group[0].line.server
    assert len(before.sent) == 2 * len(group)
    group[0].board.want(LARGE)

    after = Server(3)
    newcomers = [Worker(after, rank) for rank in (1, 2)]
    # Its ranks are dealt out anew as well.
    survivor = group[0]
    survivor.line.server, survivor.line.rank = after, 0
    survivor.control.restart(0, 3)
    survivor.cuts.clear()
    after.declared[0].extend(before.declared[0])
    group = [survivor, *newcomers]
    turns.play(*(worker.run(3 * RECUT_ROUNDS) for worker in group))
    assert all(worker.cuts == [LARGE] * 3 * RECUT_ROUNDS for worker in group)


def test_a_round_that_was_not_begun_does_not_overwrite_a_page() -> None:
    server = Server(1)
    worker = Worker(server, 0)
    worker.control.ask(SIZES)
    worker.control.first()
    for _ in range(2 * RECUT_ROUNDS - 1):
        worker.control.round_ends()
    with pytest.raises(RuntimeError, match="never began"):
        worker.control.round_ends()


def test_the_decider_is_the_process_that_talks_to_the_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """With three processes a machine, this is the third one, as in BytePS; the others see no transfers."""
    turns, server = Turns(monkeypatch, 4), Server(6)
    cuts = [Cut.uniform(UNIT_BYTES * (1 + rank)) for rank in range(6)]
    begun: list[Cut] = []

    def worker(rank: int) -> Iterator[None]:
        board = CutBoard(None, lambda sizes: cuts[rank])
        control = CutControl(board, 0, Line(server, rank), rank, 6, local_size=3)
        control.declare()
        control.ask(SIZES)
        begun.append(control.first())
        yield

    turns.play(*(worker(rank) for rank in range(6)))
    assert begun == [cuts[2]] * 6


def test_every_worker_is_told_which_job_this_is() -> None:
    """Even if the cut is fixed, or another worker's holds, each worker keeps what it learns of the job."""
    asked: list[tuple[int, ...]] = []

    def first_cut(sizes: Sequence[int]) -> Cut:
        asked.append(tuple(sizes))
        return Cut.uniform(4096)

    fixed = Cut.uniform(8192)
    control = CutControl(CutBoard(fixed, first_cut), 0, None, 1, 2)
    control.ask([5, 6])
    assert control.first() == fixed
    assert asked == [(5, 6)]


def test_workers_that_begin_with_different_optimizers_do_not_wait_for_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    turns, server = Turns(monkeypatch, 5), Server(2)
    begun: list[Cut] = []

    def worker(rank: int) -> Iterator[None]:
        board = CutBoard(None, lambda sizes: SMALL)
        controls = [CutControl(board, number, Line(server, rank), rank, 2) for number in range(2)]
        for control in controls:
            control.declare()
            control.ask(SIZES)
        yield
        for control in controls[:: -1 if rank else 1]:
            begun.append(control.first())
            yield

    turns.play(worker(0), worker(1))
    assert begun == [SMALL] * 4


def test_each_of_a_jobs_first_rounds_ends_with_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prophet_scheduler.core.cut.EARLY_ROUNDS", 3)
    turns, group = job(monkeypatch, 1, 2)
    cuts = [LARGE, SMALL, LARGE, SMALL, SMALL, STEPPED, STEPPED, STEPPED]
    want = lambda number: group[0].board.want(cuts[number])  # noqa: E731
    turns.play(group[0].run(len(cuts), want), group[1].run(len(cuts)))
    assert group[0].cuts == group[1].cuts
    assert group[0].cuts == [SMALL, LARGE, SMALL, LARGE, SMALL, SMALL, SMALL, SMALL]
