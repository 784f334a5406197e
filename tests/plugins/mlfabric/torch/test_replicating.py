"""Copies of the model at a worker, and a job that begins with one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from prophet_mlfabric.messages import Copy
from prophet_mlfabric.replica import JobReplica, ReplicaModel, load
from prophet_mlfabric.torch.asynchronous import AsynchronousRounds
from prophet_mlfabric.torch.replicating import ReplicatingWorker, begin
from prophet_mlfabric.torch.weight_blocks import WeightBlocks
from prophet_scheduler.core.errors import UserError
from support.update_server import UpdateServer

WORKERS = 2
LONG_S = 60.0


class Coordinator:
    def __init__(self) -> None:
        self.on_copy: Callable[[Copy], None]
        self.answers: list[tuple[int, str]] = []
        self.answered = threading.Semaphore(0)

    def copied(self, number: int, reason: str = "") -> None:
        self.answers.append((number, reason))
        self.answered.release()

    def wait(self) -> tuple[int, str]:
        assert self.answered.acquire(timeout=LONG_S)
        return self.answers[-1]


class Worker:
    """Parameters of two shapes in blocks that cut through them, and a server that has had updates of both workers."""

    def __init__(self, file: Path) -> None:
        torch.manual_seed(3)
        self.parameters = [torch.nn.Parameter(torch.randn(2, 3)), torch.nn.Parameter(torch.randn(5))]
        self.blocks = WeightBlocks(self.parameters, WORKERS, 16)
        self.blocks.hold_weights(before=40)
        self.server = UpdateServer(self.blocks.blocks)
        self.coordinator = Coordinator()
        rounds = AsynchronousRounds(self.blocks, self.server, 0, sleep=lambda seconds: None)
        coordinator: Any = self.coordinator
        self.copying = ReplicatingWorker(rounds, ["first", "second"], coordinator, file)

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
def worker(tmp_path: Path) -> Iterator[Worker]:
    made = Worker(tmp_path / "of" / "model.npz")
    yield made
    made.copying.close()


def test_a_copy_has_the_servers_model_and_its_counts(worker: Worker, tmp_path: Path) -> None:
    worker.update(0, 1.0)
    worker.update(1, 0.5)
    worker.update(1, 0.25)
    worker.coordinator.on_copy(Copy(number=5, bound=2.5))
    assert worker.coordinator.wait() == (5, "")
    model = load(tmp_path / "of" / "model.npz", "here")
    assert list(model.weights) == ["first", "second"]
    for array, param in zip(model.weights.values(), worker.parameters, strict=True):
        assert np.array_equal(array, param.detach().numpy())
    assert (model.counts, model.before, model.bound, model.updates) == ((1, 2), 40, 2.5, 43)


def test_a_repeated_order_is_answered_without_another_copy(worker: Worker) -> None:
    for number, pulls in ((5, 1), (5, 1), (6, 2)):
        worker.coordinator.on_copy(Copy(number=number, bound=2.5))
        assert worker.coordinator.wait() == (number, "")
        assert worker.server.pulls == pulls * len(worker.blocks.blocks)


def test_a_write_error_is_reported_to_the_coordinator(
    worker: Worker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "of").touch()
    worker.coordinator.on_copy(Copy(number=5, bound=2.5))
    assert worker.coordinator.wait() == (5, f"[Errno 17] File exists: '{tmp_path / 'of'}'")
    assert not caplog.records, "the coordinator says it"


def optimizer_of(*parameters: torch.Tensor) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def test_a_job_begins_with_the_replicas_weights_and_says_the_loss(capsys: pytest.CaptureFixture[str]) -> None:
    parameters = [torch.nn.Parameter(torch.zeros(2, 3)), torch.nn.Parameter(torch.zeros(()))]
    weights = {"layer.weight": np.ones((2, 3), np.float32), "parameter.1": np.full((), 4.0, np.float32)}
    replica = JobReplica(model=ReplicaModel(weights, (7, 2), 5, 2.5), where="model.npz")
    assert begin(replica, optimizer_of(*parameters), [("layer.weight", parameters[0])]) == 14
    assert parameters[0].tolist() == [[1.0] * 3] * 2 and parameters[1].item() == 4.0
    assert capsys.readouterr().err == (
        "Prophet: this job begins with the 14 updates that model.npz has; "
        "later updates of its server, with a total norm of at most 2.5, are lost\n"
    )
    assert begin(JobReplica(), optimizer_of(*parameters), None) == 0


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({"a": (3, 2)}, r"^here: it is of another model: a \[3, 2\] where the optimizer has a \[2, 3\]$"),
        ({"b": (2, 3)}, r"b \[2, 3\] where the optimizer has a \[2, 3\]"),
        ({"a": (2, 3), "b": (1,)}, "2 parameters, but the optimizer has 1"),
    ],
)
def test_weights_of_another_model_are_refused_unchanged(changed: dict[str, Any], line: str) -> None:
    parameter = torch.nn.Parameter(torch.zeros(2, 3))
    weights = {name: np.ones(shape, np.float32) for name, shape in changed.items()}
    replica = JobReplica(model=ReplicaModel(weights, (1,), 0, 1.0), where="here")
    with pytest.raises(UserError, match=line):
        begin(replica, optimizer_of(parameter), [("a", parameter)])
    assert not parameter.any()
