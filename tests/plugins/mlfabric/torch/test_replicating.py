"""Copies of the model at a worker: what is in them, what is said of them, and a job that begins with one."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from prophet_mlfabric.messages import Copy
from prophet_mlfabric.replica import ReplicaModel, load
from prophet_mlfabric.torch.asynchronous import AsynchronousRounds
from prophet_mlfabric.torch.replicating import ReplicatingWorker, begin_with, names_of
from prophet_mlfabric.torch.weight_blocks import WeightBlocks
from prophet_scheduler.core.errors import UserError
from support.update_server import UpdateServer

WORKERS = 2
LONG_S = 60.0


class Coordinator:
    def __init__(self) -> None:
        self.order: Callable[[Copy], None]
        self.answers: list[tuple[int, str]] = []
        self.answered = threading.Semaphore(0)

    def on_copy(self, copy: Callable[[Copy], None]) -> None:
        self.order = copy

    def copied(self, number: int, reason: str = "") -> None:
        self.answers.append((number, reason))
        self.answered.release()

    def wait(self) -> tuple[int, str]:
        assert self.answered.acquire(timeout=LONG_S)
        return self.answers[-1]


class Store:
    def __init__(self) -> None:
        self.kept: list[tuple[bytes, int]] = []
        self.error: Exception | None = None

    def updates(self) -> int | None:
        if self.error is not None:
            raise self.error
        return None

    def keep(self, data: bytes, updates: int) -> None:
        self.kept.append((data, updates))


class Worker:
    """Parameters of two shapes in blocks that cut through them, and a server that has had updates of both workers."""

    def __init__(self) -> None:
        torch.manual_seed(3)
        self.parameters = [torch.nn.Parameter(torch.randn(2, 3)), torch.nn.Parameter(torch.randn(5))]
        self.blocks = WeightBlocks(self.parameters, WORKERS, 16)
        self.blocks.hold_weights(before=40)
        self.server = UpdateServer(self.blocks.blocks)
        self.coordinator = Coordinator()
        self.store = Store()
        rounds = AsynchronousRounds(self.blocks, self.server, 0, sleep=lambda seconds: None)
        coordinator: Any = self.coordinator
        store: Any = self.store
        self.copying = ReplicatingWorker(rounds, ["first", "second"], coordinator, store)

    def update(self, worker: int, change: float) -> None:
        self.blocks.take()
        with torch.no_grad():
            for param in self.parameters:
                param.add_(change)
        self.blocks.hold_update(worker)
        self.server.push(self.blocks.blocks)
        self.blocks.memory.zero_()
        self.server.pull(self.blocks.blocks, range(len(self.blocks.blocks)))
        self.blocks.take()


@pytest.fixture
def worker() -> Iterator[Worker]:
    made = Worker()
    yield made
    made.copying.close()


def test_a_copy_is_the_servers_model_and_says_which_updates_it_has(worker: Worker) -> None:
    worker.update(0, 1.0)
    worker.update(1, 0.5)
    worker.update(1, 0.25)
    worker.coordinator.order(Copy(number=5, bound=2.5))
    assert worker.coordinator.wait() == (5, "")
    ((data, updates),) = worker.store.kept
    model = load(io.BytesIO(data), "here")
    assert list(model.weights) == ["first", "second"]
    for array, param in zip(model.weights.values(), worker.parameters, strict=True):
        assert np.array_equal(array, param.detach().numpy())
    assert (model.counts, model.before, model.bound, updates) == ((1, 2), 40, 2.5, 43)


def test_an_order_that_comes_again_is_answered_again_and_not_made_again(worker: Worker) -> None:
    for _ in range(2):
        worker.coordinator.order(Copy(number=5, bound=2.5))
        assert worker.coordinator.wait() == (5, "")
    assert len(worker.store.kept) == 1
    worker.coordinator.order(Copy(number=6, bound=2.5))
    assert worker.coordinator.wait() == (6, "")
    assert len(worker.store.kept) == 2


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ConnectionRefusedError(111, "Connection refused"), "[Errno 111] Connection refused"),
        (UserError("replica a:1: the token is wrong"), "replica a:1: the token is wrong"),
        (RuntimeError("no"), "RuntimeError: no"),
    ],
)
def test_a_replica_that_takes_nothing_is_said_before_anything_is_read(
    worker: Worker, error: Exception, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    worker.store.error = error
    worker.coordinator.order(Copy(number=5, bound=2.5))
    assert worker.coordinator.wait() == (5, reason)
    assert worker.server.pulls == 0
    assert not caplog.records, "the coordinator says it once for all workers"


def test_a_job_begins_with_the_replicas_weights() -> None:
    parameters = [torch.nn.Parameter(torch.zeros(2, 3)), torch.nn.Parameter(torch.zeros(()))]
    names = names_of(parameters, [("layer.weight", parameters[0])])
    assert names == ["layer.weight", "parameter.1"]
    weights = {"layer.weight": np.ones((2, 3), np.float32), "parameter.1": np.full((), 4.0, np.float32)}
    begin_with(ReplicaModel(weights, (1,), 0, 1.0), parameters, names, "here")
    assert parameters[0].tolist() == [[1.0] * 3] * 2 and parameters[1].item() == 4.0


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({"a": (3, 2)}, r"^here: it is of another model: a \[3, 2\] where the optimizer has a \[2, 3\]$"),
        ({"b": (2, 3)}, r"b \[2, 3\] where the optimizer has a \[2, 3\]"),
        ({"a": (2, 3), "b": (1,)}, "2 parameters, but the optimizer has 1"),
    ],
)
def test_another_models_weights_are_refused_and_nothing_is_changed(changed: dict[str, Any], line: str) -> None:
    parameter = torch.nn.Parameter(torch.zeros(2, 3))
    weights = {name: np.ones(shape, np.float32) for name, shape in changed.items()}
    with pytest.raises(UserError, match=line):
        begin_with(ReplicaModel(weights, (1,), 0, 1.0), [parameter], ["a"], "here")
    assert not parameter.any()
