"""Sums of updates at a worker: what it pushes, who gets the model, and what becomes of a member that is left alone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import pytest
import torch

from prophet_mlfabric.peers import PeerMessage
from prophet_mlfabric.ports import Asking, Collection, ModelCopy, Outcome, Permission
from prophet_mlfabric.torch import aggregating
from prophet_mlfabric.torch.aggregating import SummingWorker
from prophet_mlfabric.torch.asynchronous import AsynchronousRounds
from prophet_mlfabric.torch.weight_blocks import WeightBlocks

LONG_S = 60.0
"""Nothing takes so long."""
WORKERS = 3


class Job:
    """A server, a coordinator that has all updates summed at worker 0 once `members` are asked for, and a network."""

    def __init__(self, members: int) -> None:
        self.sums: list[torch.Tensor] = []
        self.pushes = 0
        self.pushed = threading.Event()
        self.members = members
        self.asked: list[tuple[int, Asking]] = []
        self.collect: dict[int, Callable[[Collection], None]] = {}
        self.receive: dict[int, Callable[[PeerMessage, int, int, bytes], None]] = {}
        self.version = 0
        self.models = True
        self.sum_goes = True
        self.sent: list[tuple[PeerMessage, int]] = []
        self.lock = threading.RLock()

    def push(self, blocks: Sequence[torch.Tensor]) -> None:
        with self.lock:
            self.pushes += 1
            self.pushed.set()
            if not self.sums:
                self.sums = [torch.zeros_like(block) for block in blocks]
            for kept, block in zip(self.sums, blocks, strict=True):
                kept += block

    def pull(self, blocks: Sequence[torch.Tensor], places: Sequence[int]) -> None:
        with self.lock:
            for block, place in zip(blocks, places, strict=True):
                block.copy_(self.sums[place])


class Coordinator:
    """Its side of one worker."""

    def __init__(self, job: Job, worker: int) -> None:
        self.job, self.worker = job, worker

    @property
    def version(self) -> int:
        return self.job.version

    def ask(self, size_bytes: int, version: int, norm: float) -> Asking:
        job = self.job
        with job.lock:
            asking = Asking(sum(worker == self.worker for worker, _ in job.asked), size_bytes)
            job.asked.append((self.worker, asking))
            asking.permission.set_result(Permission(asking.update, True, "", 0, job.version, True))
            if len(job.asked) == job.members:
                job.collect[0](Collection(5, tuple((worker, asking.update) for worker, asking in job.asked)))
        return asking

    def done(self, asking: Asking, size_bytes: int) -> Future[Outcome]:
        raise AssertionError("a member of a sum does not say that it is done")

    def on_collect(self, collect: Callable[[Collection], None]) -> None:
        self.job.collect[self.worker] = collect

    def on_copy(self, copy: Callable[[ModelCopy], None]) -> None: ...
    def copied(self, number: int, reason: str = "") -> None: ...

    def collected(self, number: int) -> Future[Permission]:
        assert (self.worker, number) == (0, 5)
        future: Future[Permission] = Future()
        future.set_result(Permission(0, self.job.sum_goes, "", None, self.job.version, True))
        if not self.job.sum_goes:
            self.lose()
        return future

    def lose(self) -> None:
        for _, asking in self.job.asked:
            asking.outcome.set_result(Outcome(asking.update, False, 0, None, "too late"))

    def pushed_sum(self, number: int, size_bytes: int) -> None:
        for _, asking in self.job.asked:
            self.job.version += 1
            asking.outcome.set_result(Outcome(asking.update, True, self.job.version, 1))

    def clock(self, rounds: int, models: int) -> Future[bool]:
        raise AssertionError("no lead is bounded")

    def wait_for_others(self) -> tuple[int, ...]:
        return ()

    def report(self, up: float | None = None, down: float | None = None) -> None: ...
    def close(self) -> None: ...


class Worker:
    def __init__(self, job: Job, number: int, models: bool = True) -> None:
        self.weights = torch.nn.Parameter(torch.zeros(5))
        self.blocks = WeightBlocks([self.weights], WORKERS, 8)
        coordinator = Coordinator(job, number)
        self.rounds = AsynchronousRounds(self.blocks, job, number, coordinator, sleep=lambda seconds: None)

        def send(what: PeerMessage, worker: int, update: int, payload: Any) -> None:
            job.sent.append((what, worker))
            if what is PeerMessage.UPDATE or job.models:
                job.receive[worker](what, number, update, bytes(payload))

        self.summing = SummingWorker(self.blocks, job, self.rounds.pulls, number, coordinator, send, models)
        job.receive[number] = self.summing.receive
        self.rounds.aggregate(self.summing)
        self.rounds.start()

    def train(self, change: float) -> threading.Thread:
        def work() -> None:
            with torch.no_grad():
                self.weights.add_(change)
            self.rounds.round()

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        return thread


def trained(job: Job, models: bool = True) -> list[Worker]:
    workers = [Worker(job, number, models) for number in range(WORKERS)]
    job.pushes = 0
    threads = [worker.train(10.0**number) for number, worker in enumerate(workers[: job.members])]
    for thread in threads:
        thread.join(LONG_S)
        assert not thread.is_alive()
    for worker in workers:
        worker.summing.close()
    return workers


def test_updates_go_as_one_and_each_member_has_the_model_from_its_aggregator() -> None:
    job = Job(members=3)
    workers = trained(job)
    assert job.pushes == 1
    for number, worker in enumerate(workers):
        assert worker.weights.tolist() == [111.0] * 5
        assert (worker.rounds.version, worker.rounds.own_updates) == (3, 1)
        assert worker.rounds.tally.sent == 1, number
    models = [worker for what, worker in job.sent if what is PeerMessage.MODEL]
    assert sorted(models) == [1, 2], "its own it has already"
    assert workers[0].summing.summed == 3


def test_where_members_wait_for_others_anyway_no_model_is_handed_out() -> None:
    job = Job(members=3)
    workers = trained(job, models=False)
    assert job.pushes == 1
    assert [what for what, _ in job.sent if what is PeerMessage.MODEL] == []
    assert [worker.weights.tolist() for worker in workers] == [[111.0] * 5] * 3, "each has read the server's"


def test_a_member_without_a_model_reads_the_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aggregating, "MODEL_S", 0.01)
    job = Job(members=2)
    job.models = False
    workers = trained(job)
    assert [worker.weights.tolist()[0] for worker in workers] == [11.0, 11.0, 0.0]


def test_a_sum_that_may_not_go_leaves_no_trace() -> None:
    job = Job(members=2)
    job.sum_goes = False
    workers = trained(job)
    assert job.pushes == 0
    assert [worker.weights.tolist()[0] for worker in workers] == [0.0] * 3, "they go on from the server's weights"
    assert [worker.rounds.tally.lost for worker in workers] == [1, 1, 0]


def test_a_collection_may_be_replaced_or_taken_back_and_what_has_another_length_is_nothing() -> None:
    job = Job(members=9)
    worker = Worker(job, 0)
    job.pushes = 0
    size = worker.blocks.size_bytes
    job.collect[0](Collection(5, ((1, 0), (2, 0))))
    job.receive[0](PeerMessage.UPDATE, 1, 0, bytes(size))
    job.receive[0](PeerMessage.UPDATE, 2, 0, bytes(size - 4))
    job.collect[0](Collection(6, ((1, 7),)))
    job.collect[0](Collection(6, ()))
    job.receive[0](PeerMessage.UPDATE, 1, 7, bytes(size))
    assert job.pushes == 0
    job.pushed.clear()
    job.collect[0](Collection(5, ((1, 0),)))
    assert job.pushed.wait(LONG_S)
    worker.summing.close()
    assert job.pushes == 1


def test_a_worker_that_ends_pushes_no_sum_that_was_not_on_its_way() -> None:
    job = Job(members=9)
    worker = Worker(job, 0)
    job.pushes = 0
    worker.summing._closing = True
    job.collect[0](Collection(5, ((1, 0),)))
    job.receive[0](PeerMessage.UPDATE, 1, 0, bytes(worker.blocks.size_bytes))
    worker.summing.close()
    assert job.pushes == 0


def test_a_worker_that_ends_first_waits_for_what_it_was_told_to_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aggregating, "LAST_S", LONG_S)
    job = Job(members=9)
    worker = Worker(job, 0)
    job.pushes = 0
    job.collect[0](Collection(5, ((1, 0),)))
    ending = threading.Thread(target=worker.summing.close, daemon=True)
    ending.start()
    ending.join(0.05)
    assert ending.is_alive()
    job.receive[0](PeerMessage.UPDATE, 1, 0, bytes(worker.blocks.size_bytes))
    ending.join(LONG_S)
    assert not ending.is_alive()
    assert job.pushes == 1


def test_a_worker_that_ends_does_not_wait_for_ever_for_an_update_that_never_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(aggregating, "LAST_S", 0.01)
    job = Job(members=9)
    worker = Worker(job, 0)
    job.pushes = 0
    job.collect[0](Collection(5, ((1, 0), (2, 0))))
    worker.summing.close()
    job.receive[0](PeerMessage.UPDATE, 1, 0, bytes(worker.blocks.size_bytes))
    assert job.pushes == 0
