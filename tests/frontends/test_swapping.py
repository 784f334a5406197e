"""An update that computes in one thread, with averages in the place of gradients, while another has those gradients."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any

import pytest
import torch
from torch import nn

from prophet_scheduler.frontends.torch import guards, references, steps
from prophet_scheduler.frontends.torch.optimizer import updates_of
from support.front_end import LateRounds, forget

LIMIT_S = 60.0
GRADIENT, AVERAGE = 1.0, 3.0


class SpeakingLock:
    """A lock that says when a thread has to wait for it."""

    def __init__(self, said: SimpleQueue[str]) -> None:
        self._lock = threading.RLock()
        self._said = said

    def acquire(self) -> None:
        if not self._lock.acquire(blocking=False):
            self._said.put("waits")
            self._lock.acquire()

    def release(self) -> None:
        self._lock.release()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class Job:
    """A model whose update is to come, and what another thread does while it computes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        steps.install()
        self._said: SimpleQueue[str] = SimpleQueue()
        lock = SpeakingLock(self._said)
        for function in [each for each, held in references.READ_NOTHING.items() if held is references.swapping]:
            monkeypatch.setitem(references.READ_NOTHING, function, lock)
        monkeypatch.setattr(references, "swapping", lock)
        self.model = nn.Linear(2, 1, bias=False)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.1)
        self.rounds = LateRounds(self.model, AVERAGE / GRADIENT)
        self.model(torch.full((1, 2), GRADIENT)).sum().backward()
        self.param = self.model.weight
        """As who has kept it reaches it: through the model an update is waited for."""
        self.gradient = self.param.grad
        self._before = self.param.detach().clone()
        self.optimizer.step()
        module: Any = importlib.import_module("torch.optim.sgd")
        self._compute = module.sgd
        self._beside: Callable[[], None] = lambda: None
        monkeypatch.setattr(module, "sgd", self._computes)

    def update(self, beside: Callable[[], None]) -> str:
        """Makes the update; whether `beside` in another thread, which begins within it, waits for its end or is done
        before.
        """
        self._beside, self._first = beside, ""
        updates = updates_of(self.optimizer)
        assert updates is not None
        updates.flush()
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive()
        torch.testing.assert_close(self.param, self._before - 0.1 * AVERAGE)
        return self._first

    def _computes(self, *args: Any, **kwargs: Any) -> None:
        def beside() -> None:
            self._beside()
            self._said.put("is done")

        self._thread = threading.Thread(target=beside)
        self._thread.start()
        self._first = self._said.get(timeout=LIMIT_S)
        self._compute(*args, **kwargs)


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    yield Job(monkeypatch)
    forget()


@pytest.mark.parametrize("kind", ["optimizer", "model"])
def test_gradients_that_are_cleared_meanwhile_are_cleared_when_the_update_is_over(job: Job, kind: str) -> None:
    assert job.update(getattr(job, kind).zero_grad) == "waits"
    assert job.param.grad is None


def test_who_looks_at_a_gradient_meanwhile_finds_that_tensor_and_no_other(job: Job) -> None:
    seen: list[Any] = []
    assert job.update(lambda: seen.append(job.param.grad)) == "waits"
    assert seen[0] is job.gradient


def test_a_gradient_that_is_put_there_meanwhile_stays(job: Job) -> None:
    def put() -> None:
        job.param.grad = torch.full((1, 2), 7.0)

    assert job.update(put) == "waits"
    assert job.param.grad is not None and job.param.grad.tolist() == [[7.0, 7.0]]


@pytest.mark.parametrize("moment", ["keep", "release"])
def test_who_uses_a_parameter_while_a_step_begins_or_its_last_update_ends_waits(
    monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    steps.install()
    model = nn.Linear(2, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    rounds = LateRounds(model, AVERAGE / GRADIENT)
    before = model.weight.detach().clone()
    said: SimpleQueue[str] = SimpleQueue()
    first: list[str] = []

    def beside() -> None:
        updates.finish(rounds.slots)
        said.put("is done")

    def train() -> None:
        optimizer.zero_grad()
        model(torch.full((1, 2), GRADIENT)).sum().backward()
        optimizer.step()

    def in_between(*args: Any) -> Any:
        if not first:
            thread.start()
            first.append(said.get(timeout=LIMIT_S))
        return original(*args)

    train()
    updates: Any = updates_of(optimizer)
    updates.flush()
    updates.updating = SpeakingLock(said)
    thread, original = threading.Thread(target=beside), getattr(guards, moment)
    monkeypatch.setattr(guards, moment, in_between)
    train()
    updates.flush()
    thread.join(LIMIT_S)
    monkeypatch.undo()
    forget()
    assert first == ["waits"]
    torch.testing.assert_close(model.weight, before - 2 * 0.1 * AVERAGE)
