"""Sums of updates at a worker: what it pushes, who gets the model, and what becomes of a member that is left alone."""

from __future__ import annotations

import operator
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import pytest
import torch

from prophet_mlfabric.conversation import Asking, Outcome, Permission
from prophet_mlfabric.exchange import Asked
from prophet_mlfabric.messages import Collect
from prophet_mlfabric.torch import aggregating
from prophet_mlfabric.torch.aggregating import UPDATE, SummingWorker
from prophet_mlfabric.torch.asynchronous import AsynchronousRounds, WholePulls
from prophet_mlfabric.torch.weight_blocks import WeightBlocks
from support.update_server import UpdateServer

LONG_S = 60.0
"""Nothing takes so long."""
WORKERS = 3
KEY = b"the key of the tests"


class Job(UpdateServer):
    """A server, a coordinator that has all updates summed at worker 0 once `members` are asked for, and a network."""

    def __init__(self, members: int) -> None:
        super().__init__()
        self.pushed = threading.Event()
        self.members = members
        self.asked: list[tuple[int, Asking]] = []
        self.collect: dict[int, Callable[[Collect], None]] = {}
        self.address: tuple[str, int] = "", 0
        """Worker 0's, which takes updates."""
        self.version = 0
        self.sum_goes = True

    def push(self, blocks: Sequence[torch.Tensor]) -> None:
        super().push(blocks)
        self.pushed.set()


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
            asking = Asking(sum(worker == self.worker for worker, _ in job.asked))
            job.asked.append((self.worker, asking))
            asking.permission.set_result(
                Permission(asking.update, True, "", 0, job.version, True, "{}:{}".format(*job.address))
            )
            if len(job.asked) == job.members:
                job.collect[0](
                    Collect(number=5, members=tuple((worker, asking.update) for worker, asking in job.asked))
                )
        return asking

    def done(self, asking: Asking, size_bytes: int) -> Future[Outcome]:
        raise AssertionError("a member of a sum does not say that it is done")

    def on_collect(self, collect: Callable[[Collect], None], address: str) -> None:
        self.job.collect[self.worker] = collect
        if self.worker == 0:
            host, port = address.split(":")
            self.job.address = host, int(port)

    def collected(self, number: int) -> Future[Permission]:
        assert (self.worker, number) == (0, 5)
        future: Future[Permission] = Future()
        future.set_result(Permission(5, self.job.sum_goes, "", None, self.job.version, True, sum=True))
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
        future: Future[bool] = Future()
        future.set_result(True)
        return future


class Worker:
    def __init__(self, job: Job, number: int, models: bool = True) -> None:
        self.weights = torch.nn.Parameter(torch.zeros(5))
        self.blocks = WeightBlocks([self.weights], WORKERS, 8)
        coordinator: Any = Coordinator(job, number)
        staleness = None if models else 2
        self.rounds = AsynchronousRounds(self.blocks, job, number, coordinator, staleness=staleness)
        self.summing = SummingWorker(self.rounds, coordinator, KEY, "127.0.0.1")
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


def test_where_members_wait_for_others_anyway_no_model_is_handed_out() -> None:
    job = Job(members=3)
    workers = trained(job, models=False)
    assert job.pushes == 1
    assert [worker.weights.tolist() for worker in workers] == [[111.0] * 5] * 3, "each has read the server's"


def test_a_member_without_a_model_reads_the_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aggregating, "MODEL_S", 0.2)
    monkeypatch.setattr(WholePulls, "whole", no_model_at_the_aggregator)
    job = Job(members=2)
    workers = trained(job)
    assert [worker.weights.tolist()[0] for worker in workers] == [11.0, 11.0, 0.0]


def no_model_at_the_aggregator(pulls: WholePulls, blocks: Sequence[torch.Tensor]) -> None:
    if threading.current_thread().name == "prophet-aggregator":
        raise OSError("no model")
    pulls.read(blocks, range(len(blocks)))


@contextmanager
def sent(job: Job, worker: int, update: int, size: int) -> Iterator[None]:
    """This update is on its way to worker 0 meanwhile, of so many bytes."""
    with Asked(job.address, KEY, UPDATE, worker, update, bytes(size)):
        yield


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
    job.collect[0](Collect(number=5, members=((1, 0), (2, 0))))
    job.collect[0](Collect(number=6, members=((1, 7),)))
    job.collect[0](Collect(number=6, members=()))
    job.pushed.clear()
    with sent(job, 2, 0, size - 4), sent(job, 1, 7, size), sent(job, 1, 0, size):
        until(lambda: {(1, 7), (1, 0)} == worker.summing._came.keys())
        assert job.pushes == 0
        job.collect[0](Collect(number=5, members=((1, 0),)))
        assert job.pushed.wait(LONG_S)
    worker.summing.close()
    assert job.pushes == 1


def until(holds: Callable[[], bool]) -> None:
    ends_s = time.monotonic() + LONG_S
    while not holds():
        assert time.monotonic() < ends_s


def test_a_worker_that_ends_pushes_no_sum_that_was_not_on_its_way() -> None:
    job = Job(members=9)
    worker = Worker(job, 0)
    job.pushes = 0
    worker.summing._closing = True
    job.collect[0](Collect(number=5, members=((1, 0),)))
    with sent(job, 1, 0, worker.blocks.size_bytes):
        worker.summing.close()
    assert job.pushes == 0


@pytest.mark.parametrize("comes", [True, False])
def test_a_worker_that_ends_waits_for_what_it_was_told_to_sum_and_not_for_ever(
    monkeypatch: pytest.MonkeyPatch, comes: bool
) -> None:
    monkeypatch.setattr(aggregating, "LAST_S", LONG_S if comes else 0.01)
    job = Job(members=9)
    worker = Worker(job, 0)
    job.pushes = 0
    job.collect[0](Collect(number=5, members=((1, 0),)))
    ending = threading.Thread(target=worker.summing.close, daemon=True)
    ending.start()
    ending.join(0.05 if comes else LONG_S)
    assert ending.is_alive() == comes
    if comes:
        with sent(job, 1, 0, worker.blocks.size_bytes):
            ending.join(LONG_S)
    assert not ending.is_alive()
    assert job.pushes == comes


def test_what_nobody_awaits_takes_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(members=9)
    size = WeightBlocks([torch.zeros(5)], WORKERS, 8).size_bytes
    monkeypatch.setattr(aggregating, "MOST_KEPT_BYTES", 2 * size)
    worker = Worker(job, 0)
    job.collect[0](Collect(number=5, members=((1, 0), (1, 9))))
    came = worker.summing._came
    with ExitStack() as stack:
        for number in range(4):
            stack.enter_context(sent(job, 1, number, size))
            until(partial(operator.contains, came, (1, number)))
        until(lambda: came.keys() == {(1, 0), (1, 2), (1, 3)})
    monkeypatch.setattr(aggregating, "LAST_S", 0.01)
    worker.summing.close()
