"""A worker's asynchronous rounds, with a server and a coordinator that are a few lines each."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
import torch

from prophet_mlfabric.conversation import Asking, Outcome, Permission
from prophet_mlfabric.torch.asynchronous import PATIENCE_S, AsynchronousRounds
from prophet_mlfabric.torch.weight_blocks import WeightBlocks
from support.update_server import UpdateServer

WORKERS = 2


class Coordinator:
    """Grants everything at once, but for what `drops` has."""

    def __init__(self) -> None:
        self.version = 0
        self.asked: list[tuple[int, int, float]] = []
        self.finished = 0
        self.drops: set[int] = set()
        self.summed_at: int | None = None
        self.clocks: list[tuple[int, int]] = []
        self.coordinated = True
        self.error: Exception | None = None

    def ask(self, size_bytes: int, version: int, norm: float) -> Asking:
        if self.error is not None:
            raise self.error
        asking = Asking(len(self.asked))
        self.asked.append((size_bytes, version, norm))
        goes = asking.update not in self.drops
        permission = Permission(asking.update, goes, "", self.summed_at, self.version, self.coordinated)
        asking.permission.set_result(permission)
        return asking

    def done(self, asking: Asking, size_bytes: int) -> Future[Outcome]:
        self.finished += 1
        self.version += 1
        if not asking.outcome.done():
            asking.outcome.set_result(Outcome(asking.update, True, self.version, 7 if self.coordinated else None))
        return asking.outcome

    def clock(self, rounds: int, models: int) -> Future[bool]:
        self.clocks.append((rounds, models))
        passes: Future[bool] = Future()
        passes.set_result(self.coordinated)
        return passes


class Clock:
    """A virtual clock; `meanwhile` is called in each sleep."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.meanwhile: Callable[[], None] = lambda: None

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self.meanwhile()


class Worker:
    """Three blocks of two weights each."""

    def __init__(
        self, number: int, server: UpdateServer, coordinator: Coordinator | None = None, staleness: int | None = None
    ) -> None:
        self.weights = torch.nn.Parameter(torch.full((6,), float(number)))
        self.blocks = WeightBlocks([self.weights], WORKERS, 8)
        self.clock = Clock()
        known: Any = coordinator
        self.rounds = AsynchronousRounds(self.blocks, server, number, known, self.clock.sleep, staleness)

    def train(self, change: float) -> bool:
        with torch.no_grad():
            self.weights.add_(change)
        return self.rounds.round()

    @property
    def values(self) -> list[float]:
        return self.weights.tolist()


def test_all_begin_with_the_roots_weights() -> None:
    server = UpdateServer()
    root, other = Worker(0, server), Worker(1, server)

    def start_root() -> None:
        if not server.pushes:
            root.rounds.start()

    other.clock.meanwhile = start_root
    other.rounds.start()
    assert other.clock.now_s > 0, "it came before the root"
    assert other.values == root.values == [0.0] * 6
    assert (other.rounds.version, root.rounds.version) == (0, 0)


def test_a_job_that_goes_on_counts_its_own_updates_and_knows_those_before() -> None:
    server = UpdateServer()
    root, other = (Worker(number, server) for number in range(2))
    root.rounds.start(before=41)
    other.rounds.start()
    assert other.values == [0.0] * 6
    assert (other.rounds.version, other.rounds.own_updates, other.rounds.resumed) == (0, 0, 41)
    assert other.train(1.0)
    assert (other.rounds.version, other.rounds.resumed) == (1, 41)


def started(
    coordinator: Coordinator | None = None, staleness: int | None = None
) -> tuple[UpdateServer, Worker, Worker]:
    server = UpdateServer()
    root, other = (Worker(number, server, coordinator, staleness) for number in range(2))
    root.rounds.start()
    other.rounds.start()
    return server, root, other


def test_each_computes_on_its_own_weights_and_takes_what_others_added() -> None:
    _, root, other = started()
    assert root.train(1.0)
    assert other.train(0.5), "computed from the first weights"
    assert (root.values, other.values) == ([1.0] * 6, [1.5] * 6)
    assert (root.rounds.version, other.rounds.version) == (1, 2)
    assert (root.rounds.delay, other.rounds.delay) == (1, 2)
    assert root.train(0.0)
    assert root.values == [1.5] * 6
    assert root.rounds.own_updates == root.rounds.tally.sent == 2, "nothing is applied twice"


def test_a_dropped_update_pushes_nothing_and_its_worker_goes_on_from_fresh_weights() -> None:
    coordinator = Coordinator()
    server, root, other = started(coordinator)
    assert other.train(2.0)
    coordinator.drops = {1}
    pushed = server.pushes
    assert not root.train(100.0)
    assert server.pushes == pushed and coordinator.finished == 1
    assert root.values == [2.0] * 6
    assert root.rounds.tally.dropped == 1
    assert root.train(1.0)
    assert root.values == [3.0] * 6


def test_the_coordinator_is_told_size_version_and_norm_and_tells_the_delay() -> None:
    coordinator = Coordinator()
    _, root, other = started(coordinator)
    root.train(2.0)
    other.train(1.0)
    root.train(1.0)
    size = root.blocks.size_bytes
    assert coordinator.asked[0][:2] == (size, 0)
    assert coordinator.asked[0][2] == pytest.approx(2.0 * 6**0.5)
    assert coordinator.asked[2][:2] == (size, 1)
    assert root.rounds.tally.greatest_delay == root.rounds.delay == 7
    assert root.rounds.tally.uncoordinated == 0


def test_a_version_that_the_coordinator_has_yet_to_hear_of_is_not_claimed() -> None:
    coordinator = Coordinator()
    _, root, _ = started(coordinator)
    root.train(1.0)
    coordinator.version = 0
    root.train(1.0)
    assert coordinator.asked[1][1] == 0


def test_without_coordination_updates_go_in_order_of_arrival() -> None:
    coordinator = Coordinator()
    coordinator.coordinated = False
    _, root, _ = started(coordinator)
    assert root.train(1.0)
    assert (root.rounds.tally.uncoordinated, root.rounds.delay) == (1, 1)


def test_a_coordinator_that_fails_is_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    coordinator = Coordinator()
    _, root, _ = started(coordinator)
    coordinator.error = RuntimeError("its socket is gone")
    assert root.train(1.0) and root.train(1.0)
    assert root.values == [2.0] * 6
    assert [record.message.count("order of arrival") for record in caplog.records] == [1]
    assert "RuntimeError: its socket is gone" in caplog.text


class DeadAggregator:
    """Takes an update with it. What it has may reach the server all the same, later."""

    def __init__(self) -> None:
        self.kept: list[torch.Tensor] = []
        self.error: Exception | None = None

    def give(self, asking: Asking, permission: Permission, memory: torch.Tensor) -> bool:
        if self.error is not None:
            raise self.error
        self.kept.append(memory.clone())
        asking.outcome.set_result(Outcome(asking.update, False, 0, None, "worker 1 died"))
        return False


def test_an_update_that_was_lost_with_its_aggregator_counts_once_it_is_seen_in_the_model() -> None:
    coordinator = Coordinator()
    server, root, _ = started(coordinator)
    aggregator = DeadAggregator()
    root.rounds.give_to = aggregator.give
    coordinator.summed_at = 1
    assert root.train(1.0)
    assert root.values == [0.0] * 6
    assert (root.rounds.tally.sent, root.rounds.tally.lost, coordinator.finished) == (1, 1, 0)
    # It had been pushed, and nobody lived to say so.
    server.add(root.blocks.views(aggregator.kept[0]), range(3))
    coordinator.summed_at = None
    assert root.train(1.0)
    assert root.values == [2.0] * 6
    assert (root.rounds.tally.sent, root.rounds.tally.lost, coordinator.finished) == (2, 0, 2)
    assert root.rounds.own_updates == 2
    root.train(1.0)
    assert coordinator.finished == 3, "it is told once"


def test_an_update_that_cannot_be_sent_to_be_summed_is_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    coordinator = Coordinator()
    server, root, _ = started(coordinator)
    aggregator = DeadAggregator()
    aggregator.error = OSError("no route")
    root.rounds.give_to = aggregator.give
    coordinator.summed_at = 1
    pushed = server.pushes
    assert root.train(1.0) and root.train(1.0)
    assert server.pushes == pushed and root.rounds.tally.lost == 2
    assert [record.message for record in caplog.records] == [
        "Prophet: an update could not be sent to be summed at worker 1: OSError: no route"
    ]


def test_it_says_after_each_round_and_each_pull_how_far_it_is() -> None:
    coordinator = Coordinator()
    _, root, _ = started(coordinator, staleness=2)
    coordinator.clocks.clear()
    root.train(1.0)
    coordinator.drops = {1}
    root.train(1.0)
    assert coordinator.clocks == [(1, 1), (1, 2), (2, 2), (2, 3)], "a dropped update ends a round as well"
    assert root.values == [1.0] * 6
    assert root.rounds.tally.alone == 0


def test_in_step_the_model_moves_by_the_mean_of_what_the_workers_did() -> None:
    coordinator = Coordinator()
    _, root, other = started(coordinator, staleness=0)
    with torch.no_grad():
        other.weights.add_(3.0)
    assert root.train(1.0)
    assert root.values == [0.5] * 6
    assert other.rounds.round()
    assert other.values == [2.0] * 6


def test_where_the_coordinator_is_away_nobody_waits_and_it_is_counted() -> None:
    coordinator = Coordinator()
    coordinator.coordinated = False
    _, root, _ = started(coordinator, staleness=0)
    root.train(1.0)
    assert root.rounds.tally.alone == 1
    assert started()[1].rounds.tally.alone == 0


def test_a_worker_that_starts_anew_goes_on_after_its_own_rounds() -> None:
    coordinator = Coordinator()
    server, _, other = started(coordinator, staleness=1)
    other.train(1.0)
    other.train(1.0)
    coordinator.clocks.clear()
    again = Worker(1, server, coordinator, 1)
    again.rounds.start()
    again.train(1.0)
    assert coordinator.clocks == [(2, 3), (3, 3), (3, 4)]
    assert (again.rounds.own_updates, again.rounds.tally.lost) == (3, 0)


def test_an_update_that_comes_amid_a_pull_is_pulled_whole() -> None:
    server, root, other = started()
    with torch.no_grad():
        other.weights.add_(10.0)
    other.blocks.hold_update(1)
    whole = [block.clone() for block in other.blocks.blocks]

    def between(place: int) -> None:
        if place == 1 and whole:
            server.add(list(whole), range(3))
            whole.clear()

    server.between = between
    pulled = server.pulls
    root.train(1.0)
    assert root.values == [11.0] * 6, "no block without the other's update"
    assert server.pulls - pulled == 3 + 2, "only what was behind came again"
    assert root.rounds.version == 2


def test_blocks_that_never_agree_do_not_hold_a_job(caplog: pytest.LogCaptureFixture) -> None:
    server, root, other = started()
    other.blocks.hold_update(1)
    server.add(other.blocks.blocks, [0])  # and its worker dies
    assert root.train(1.0)
    assert PATIENCE_S <= root.clock.now_s < PATIENCE_S + 1
    assert "different updates" in caplog.text
