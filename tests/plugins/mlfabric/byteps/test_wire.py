"""The asynchronous front end over a fake BytePS: pushes, pulls and marker words in their order."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from prophet_byteps.hook import PULL_ONLY, PUSH_ONLY
from prophet_mlfabric.byteps import wire
from prophet_mlfabric.byteps.wire import BEGINS, ENDS, BytePSWire, broadcast_tensors, wrap
from support.ending import ProcessEnded, end_process


class Server:
    """Asynchronous server for several workers that applies whole updates."""

    def __init__(self) -> None:
        self.store: dict[str, torch.Tensor] = {}
        self.open: dict[int, list[tuple[str, torch.Tensor]]] = {}

    def push(self, worker: int, name: str, tensor: torch.Tensor) -> None:
        word = int(tensor[0]) if tensor.dtype == torch.int64 and len(tensor) == 1 else 0
        if word == BEGINS:
            self.open[worker] = []
        elif word == ENDS:
            for part, values in self.open.pop(worker):
                self.store[part] += values
        elif worker in self.open:
            self.open[worker].append((name, tensor.clone()))
        else:
            self.store[name] += tensor

    def pull(self, name: str, tensor: torch.Tensor) -> None:
        tensor.copy_(self.store[name])


class BytePS:
    """byteps.torch of one worker. `one_way`: with the hook."""

    def __init__(self, server: Server, rank: int, one_way: bool = True) -> None:
        self.server = server
        self.number = rank
        self.one_way = one_way
        self.said: list[tuple[str, str]] = []
        self.declared: list[str] = []
        self.DistributedOptimizer: Callable[..., Any] = lambda *arguments: None

    def rank(self) -> int:
        return self.number

    def size(self) -> int:
        return 2

    def declare(self, name: str) -> None:
        self.declared.append(name)

    def byteps_push_pull(self, tensor: torch.Tensor, average: bool, name: str, priority: int) -> int:
        assert not average and name in self.declared
        self.server.store.setdefault(name, torch.zeros_like(tensor))
        if not self.one_way or priority == PUSH_ONLY:
            self.said.append(("push", name))
            self.server.push(self.number, name, tensor)
        if not self.one_way or priority == PULL_ONLY:
            self.said.append(("pull", name))
            self.server.pull(name, tensor)
        return 1

    def poll(self, handle: int) -> bool:
        return True

    def synchronize(self, handle: int) -> None: ...


@pytest.fixture(autouse=True)
def numbers_from_0(monkeypatch: pytest.MonkeyPatch) -> None:
    """Number each worker's optimizers from 0, as if it were a separate process."""
    monkeypatch.setattr(wire, "next", lambda numbers: 0, raising=False)


class Worker:
    def __init__(self, server: Server, rank: int, one_way: bool = True) -> None:
        self.bps = BytePS(server, rank, one_way)
        self.model = torch.nn.Linear(3, 2, bias=False)
        with torch.no_grad():
            self.model.weight.fill_(rank + 1.0)
        self.plain = torch.optim.SGD(self.model.parameters(), lr=0.5)
        self.optimizer: Any = wrap(self.bps, self.plain, None, block_bytes=16)
        self.optimizer.asynchronous.start()

    def train(self, gradient: float) -> None:
        self.optimizer.zero_grad()
        self.model.weight.grad = torch.full((2, 3), gradient)
        self.optimizer.step()


@pytest.mark.parametrize("one_way", [True, False], ids=["with the hook", "without"])
def test_workers_train_separately_and_no_update_is_lost(one_way: bool) -> None:
    server = Server()
    root, other = Worker(server, 0, one_way), Worker(server, 1, one_way)
    assert torch.equal(other.model.weight.data, torch.ones(2, 3)), "all begin as the root does"
    root.train(1.0)
    other.train(2.0)
    root.train(0.0)
    for worker in (root, other):
        assert torch.equal(worker.model.weight.data, torch.full((2, 3), 1 - 0.5 - 1.0))
    assert root.optimizer.asynchronous.version == 3
    assert root.optimizer.asynchronous.own_updates == 2


def test_an_update_lies_between_two_marker_words_and_before_any_pull() -> None:
    worker = Worker(Server(), 0)
    blocks = [name for name in worker.bps.declared if "weights" in name]
    assert len(blocks) == 2
    worker.bps.said.clear()
    worker.train(1.0)
    pushes = [("push", "prophet.update.0"), *(("push", name) for name in blocks), ("push", "prophet.update.0")]
    assert worker.bps.said == [*pushes, *(("pull", name) for name in blocks)]


@pytest.mark.parametrize("limit_s", [3.0, None])
@pytest.mark.parametrize("gone", ["server", "worker"])
def test_a_silent_server_or_worker_is_named_and_may_end_the_process(
    gone: str, limit_s: float | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bps, now_s = BytePS(Server(), 0), [100.0]

    def sleep(seconds: float) -> None:
        now_s[0] += 0.5

    monkeypatch.setattr("prophet_mlfabric.byteps.wire.end_process", end_process)
    monkeypatch.setattr("prophet_mlfabric.byteps.wire.wait_activity", sleep)
    wire = BytePSWire(bps, 0, 1, limit_s, lambda: now_s[0])
    block = torch.zeros(2)
    wire.open([block])
    now_s[0] += 1000.0  # it computes
    back_at = now_s[0] + 50.0
    if gone == "server":
        monkeypatch.setattr(bps, "poll", lambda handle: now_s[0] >= back_at)
        line = "no transfer has finished for {} s: the server is gone"
        wait: Callable[[], None] = partial(wire.pull, [block], [0])
    else:
        line = "worker 1 has sent nothing for {} s, and this worker waits for it"
        wait = partial(wire.pull_until, block, lambda: now_s[0] >= back_at, "worker 1", sleep)
    if limit_s is None:
        wait()
        assert [record.message.count(line.format(45)) for record in caplog.records] == [1]
    else:
        with pytest.raises(ProcessEnded) as ended:
            wait()
        assert ended.value.line.startswith(line.format(3)) and ended.value.line.endswith(" (PROPHET_STALL_S)")
        assert ended.value.status == 75 and now_s[0] < back_at


def test_the_wrapped_optimizer_keeps_class_and_state() -> None:
    worker = Worker(Server(), 0)
    wrapped: Any = worker.optimizer
    assert torch.optim.SGD in type(wrapped).__mro__[1:] and type(wrapped).__name__ == "SGD"
    assert wrapped.param_groups is worker.plain.param_groups
    wrapped.synchronize()
    with pytest.raises(AssertionError, match="skip_synchronize cannot be used in asynchronous training"):
        wrapped.skip_synchronize()


def test_step_runs_the_closure_and_returns_its_loss() -> None:
    worker = Worker(Server(), 0)

    def closure() -> torch.Tensor:
        worker.model.weight.grad = torch.ones(2, 3)
        return torch.tensor(4.0)

    assert float(worker.optimizer.step(closure)) == 4.0
    assert torch.equal(worker.model.weight.data, torch.full((2, 3), 0.5))


@pytest.mark.parametrize("one_way", [True, False], ids=["with the hook", "without"])
def test_a_broadcast_waits_for_the_root(one_way: bool) -> None:
    server = Server()
    values = [torch.tensor([1.5, -0.0]), torch.tensor(7), torch.tensor([True, False, True]), torch.empty(0)]
    theirs = [torch.full_like(value, 3) for value in values]

    def sleep(seconds: float) -> None:
        broadcast_tensors(BytePS(server, 1, one_way), [value.clone() for value in values], 1)

    broadcast_tensors(BytePS(server, 0, one_way), theirs, 1, sleep=sleep)
    for value, its in zip(values, theirs, strict=True):
        assert torch.equal(value, its)
    assert torch.signbit(theirs[0][1]), "to the last bit"
