"""A worker's asynchronous rounds, with a fake server and coordinator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from prophet_mlfabric.client import Permission
from prophet_mlfabric.messages import Ask
from prophet_mlfabric.torch.asynchronous import PATIENCE_S, AsynchronousRounds
from prophet_mlfabric.torch.weight_blocks import WeightBlocks
from support.update_server import UpdateServer

WORKERS = 2


class Coordinator:
    """Grants all updates at once, except those in `drops`."""

    def __init__(self) -> None:
        self.version = 0
        self.asked: list[tuple[int, int, float]] = []
        self.finished = 0
        self.drops: set[int] = set()
        self.on_delay: Callable[[int], None]
        self.coordinated = True
        self.error: Exception | None = None

    def ask(self, size_bytes: int, version: int, norm: float) -> Permission:
        if self.error is not None:
            raise self.error
        ask = Ask(update=len(self.asked), size_bytes=size_bytes, version=version, norm=norm)
        self.asked.append((size_bytes, version, norm))
        return Permission(ask, ask.update not in self.drops, self.coordinated)

    def done(self, permission: Permission) -> None:
        self.finished += 1
        self.version += 1
        if self.coordinated:
            self.on_delay(7)


class Clock:
    """Virtual clock that calls `meanwhile` in each sleep."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.meanwhile: Callable[[], None] = lambda: None

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self.meanwhile()


class Worker:
    """Three blocks of two weights each."""

    def __init__(self, number: int, server: UpdateServer, coordinator: Coordinator | None = None) -> None:
        self.weights = torch.nn.Parameter(torch.full((6,), float(number)))
        self.blocks = WeightBlocks([self.weights], WORKERS, 8)
        self.clock = Clock()
        known: Any = coordinator
        self.rounds = AsynchronousRounds(self.blocks, server, number, known, self.clock.sleep)

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


def test_a_resumed_job_counts_its_own_updates_and_knows_earlier_ones() -> None:
    server = UpdateServer()
    root, other = (Worker(number, server) for number in range(2))
    root.rounds.start(before=41)
    other.rounds.start()
    assert other.values == [0.0] * 6
    assert (other.rounds.version, other.rounds.own_updates, other.rounds.resumed) == (0, 0, 41)
    assert other.train(1.0)
    assert (other.rounds.version, other.rounds.resumed) == (1, 41)


def started(coordinator: Coordinator | None = None) -> tuple[UpdateServer, Worker, Worker]:
    server = UpdateServer()
    root, other = (Worker(number, server, coordinator) for number in range(2))
    root.rounds.start()
    other.rounds.start()
    return server, root, other


def test_workers_use_their_own_weights_and_take_others_updates() -> None:
    _, root, other = started()
    assert root.train(1.0)
    assert other.train(0.5), "computed from the first weights"
    assert (root.values, other.values) == ([1.0] * 6, [1.5] * 6)
    assert (root.rounds.version, other.rounds.version) == (1, 2)
    assert (root.rounds.delay, other.rounds.delay) == (1, 2)
    assert root.train(0.0)
    assert root.values == [1.5] * 6
    assert root.rounds.own_updates == root.rounds.tally.sent == 2, "nothing is applied twice"


def test_a_dropped_update_is_not_pushed_and_fresh_weights_are_taken() -> None:
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


def test_the_coordinator_gets_size_version_and_norm_and_returns_the_delay() -> None:
    coordinator = Coordinator()
    _, root, other = started(coordinator)
    root.train(2.0)
    other.train(1.0)
    root.train(1.0)
    size = root.blocks.size_bytes
    assert coordinator.asked[0][:2] == (size, 0)
    assert coordinator.asked[0][2] == pytest.approx(2.0 * 6**0.5)
    assert coordinator.asked[2][:2] == (size, 1)
    assert other.rounds.tally.greatest_delay == other.rounds.delay == 7
    assert root.rounds.tally.uncoordinated == 0


def test_versions_unknown_to_the_coordinator_are_not_claimed() -> None:
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


def test_a_failing_coordinator_gives_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    coordinator = Coordinator()
    _, root, _ = started(coordinator)
    coordinator.error = RuntimeError("its socket is gone")
    assert root.train(1.0) and root.train(1.0)
    assert root.values == [2.0] * 6
    assert [record.message.count("order of arrival") for record in caplog.records] == [1]
    assert "RuntimeError: its socket is gone" in caplog.text


def test_an_update_applied_during_a_pull_is_pulled_whole() -> None:
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


def test_blocks_that_never_agree_do_not_stop_a_job(caplog: pytest.LogCaptureFixture) -> None:
    server, root, other = started()
    other.blocks.hold_update(1)
    server.add(other.blocks.blocks, [0])  # and its worker dies
    assert root.train(1.0)
    assert PATIENCE_S <= root.clock.now_s < PATIENCE_S + 1
    assert "different updates" in caplog.text
