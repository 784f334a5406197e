"""Gradients whose averages are under way: what looking at all of them costs, with an engine of a few lines."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any

import pytest
import torch
from torch import nn

from prophet_scheduler.frontends.torch import references, steps
from prophet_scheduler.frontends.torch.awaited import AwaitedRounds
from prophet_scheduler.frontends.torch.slot import Slot
from support.front_end import LateRounds, forget


class Rounds(LateRounds):
    """Rounds whose averages are twice the gradients; those named in `missing` come only when somebody waits."""

    barrier = AwaitedRounds.barrier
    landed = AwaitedRounds.landed

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model, 2.0)
        self.missing: set[str] = set()
        self.settled: list[list[str]] = []
        self.while_waiting: list[Callable[[], None]] = []
        self.wait_in_step()  # How the program reaches its parameters is known.

    def arrived(self, slot: Slot) -> bool:
        return slot.name not in self.missing

    def wait_activity(self, limit_s: float) -> None:
        for call in self.while_waiting:
            call()
        self.missing.clear()

    def settle(self, slots: Sequence[Slot]) -> None:  # type: ignore[override]
        self.settled.append([slot.name for slot in slots])
        super().settle(slots)


@pytest.fixture
def _clean() -> Iterator[None]:
    """Forget what a test leaves behind before the next one."""
    yield
    forget()


@pytest.fixture
def job(_clean: None) -> tuple[nn.Module, Rounds]:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    steps.install()
    return model, Rounds(model)


def backward(model: nn.Module) -> list[torch.Tensor]:
    """Return the gradients after backward; without Prophet they would be half of these averages."""
    model(torch.ones(2, 3)).square().sum().backward()
    assert references.watching_here()
    return [gradient for param in model.parameters() if (gradient := param.grad) is not None]


def expected(model: nn.Module) -> list[torch.Tensor]:
    loss = model(torch.ones(2, 3)).square().sum()
    return [2 * gradient for gradient in torch.autograd.grad(loss, list(model.parameters()))]


def test_who_looks_at_all_gradients_waits_once_and_nothing_is_watched_after_it(job: tuple[nn.Module, Rounds]) -> None:
    model, rounds = job
    whole = expected(model)
    gradients = backward(model)
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    assert rounds.settled == [["0.weight", "0.bias", "2.weight", "2.bias"]]
    assert not references.watching_here()
    torch.testing.assert_close(norm, torch.linalg.vector_norm(torch.cat([each.flatten() for each in whole])))
    for gradient, wanted in zip(gradients, whole, strict=True):
        torch.testing.assert_close(gradient, wanted * (0.5 / norm))


@pytest.mark.parametrize("look", [torch._foreach_norm, torch._foreach_neg], ids=["norm", "neg"])
def test_a_function_of_many_gradients_waits_for_them_together(
    job: tuple[nn.Module, Rounds], look: Callable[[list[torch.Tensor]], object]
) -> None:
    model, rounds = job
    whole = expected(model)
    gradients = backward(model)
    look(gradients)
    assert rounds.settled == [["0.weight", "0.bias", "2.weight", "2.bias"]]
    for gradient, wanted in zip(gradients, whole, strict=True):
        torch.testing.assert_close(gradient, wanted)


def test_the_optimizer_computes_unwatched_where_all_was_looked_at(job: tuple[nn.Module, Rounds]) -> None:
    model, _ = job
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    torch._foreach_norm(backward(model))
    assert references.watching_here(), "a mode does not go while it handles a call"
    optimizer.step()
    assert not references.watching_here()


def test_a_signals_handler_that_saves_while_others_wait_finds_averages_and_nothing_is_brought_home_twice(
    job: tuple[nn.Module, Rounds],
) -> None:
    model, rounds = job
    whole = expected(model)
    gradients = backward(model)
    rounds.missing = {"2.weight"}
    seen: list[torch.Tensor] = []

    def handler() -> None:
        rounds.missing.clear()
        model.state_dict()
        seen.extend(gradient.clone() for gradient in gradients)
        gradients[0].mul_(3)  # A second copy of the average would undo it.

    rounds.while_waiting = [handler]
    torch._foreach_norm(gradients)
    for gradient, wanted in zip(seen, whole, strict=True):
        torch.testing.assert_close(gradient, wanted)
    torch.testing.assert_close(gradients[0], 3 * whole[0])


class Interruption:
    """Signal that comes at line `number` of the front end, counted from 1, with the handler `handle`; 0 for none.
    `where`: part of the path of its files.
    """

    def __init__(
        self, number: int, handle: Callable[[], object], where: str = "/prophet_scheduler/frontends/torch/"
    ) -> None:
        self.lines = 0
        self._number = number
        self._handle = handle
        self._where = where

    def __enter__(self) -> Interruption:
        self._before = sys.gettrace()
        sys.settrace(self._call)
        return self

    def __exit__(self, *_error: object) -> None:
        sys.settrace(self._before)

    def _call(self, frame: FrameType, _event: str, _value: Any) -> Any:
        return self._line if self._where in frame.f_code.co_filename else None

    def _line(self, _frame: FrameType, event: str, _value: Any) -> Any:
        if event == "line":
            self.lines += 1
            if self.lines == self._number:
                sys.settrace(None)  # The rest, which nobody counts, runs faster.
                self._handle()
        return self._line


STRIDE = 3
"""Number of lines; one of them is interrupted."""


def trained(number: int) -> tuple[int, list[torch.Tensor]]:
    """Return the number of lines that the front end runs in two iterations, and the weights after them."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    rounds = Rounds(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    saved: list[object] = []
    with Interruption(number, lambda: saved.append((model.state_dict(), optimizer.state_dict()))) as interruption:
        for clips in (False, True):
            rounds.missing = {"2.weight"}
            optimizer.zero_grad()
            model(torch.ones(2, 3)).square().sum().backward()
            if clips:
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
        model.state_dict()
    assert bool(saved) == bool(number)
    return interruption.lines, [param.detach().clone() for param in model.parameters()]


@pytest.mark.usefixtures("_clean")
def test_a_handler_may_save_at_any_line() -> None:
    """A handler once ran between looks at two owners, and left fewer owners than before."""
    steps.install()
    trained(0)  # The first pass also fills caches.
    lines, weights = trained(0)
    for number in range(1, lines, STRIDE):
        _, others = trained(number)
        for weight, other in zip(weights, others, strict=True):
            assert torch.equal(weight, other), f"after a handler at line {number}"


def interrupted(number: int) -> tuple[int, list[tuple[torch.Tensor, torch.Tensor]]]:
    """Return the number of lines that an optimizer runs, of which one is interrupted, and each weight before its step
    and in the end.
    """

    def interrupt() -> None:
        raise KeyboardInterrupt

    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    rounds = Rounds(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    before = [param.detach().clone() for param in model.parameters()]
    rounds.missing = {"2.weight"}
    backward(model)
    with Interruption(number, interrupt, "/torch/optim/sgd.py") as interruption, contextlib.suppress(KeyboardInterrupt):
        optimizer.step()
    after = [param.detach().clone() for param in model.parameters()]
    return interruption.lines, list(zip(before, after, strict=True))


@pytest.mark.usefixtures("_clean")
def test_an_interrupt_in_an_optimizer_has_no_update_made_twice() -> None:
    steps.install()
    lines, whole = interrupted(0)
    assert lines
    for number in range(1, lines + 1):
        _, weights = interrupted(number)
        for (before, after), (_, updated) in zip(weights, whole, strict=True):
            assert torch.equal(after, updated) or torch.equal(after, before), f"after an interrupt at line {number}"
