"""BytePS's wrapper of a module without its wait, against plain torch.optim, bit for bit."""

from __future__ import annotations

import contextlib
import itertools
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from prophet_byteps.cutting import CutBoard
from prophet_byteps.torch import front_end, modules
from prophet_byteps.tracing import NOTHING, TraceBoard
from prophet_papers.tictac import TicTac
from prophet_scheduler.core.cut import MOST_BLOCK_BYTES, Cut
from prophet_scheduler.frontends.torch import guards as torch_guards
from prophet_scheduler.frontends.torch import optimizer as late_optimizer
from prophet_scheduler.frontends.torch import steps
from prophet_scheduler.frontends.torch import updates as torch_updates
from prophet_scheduler.frontends.torch.awaited import AwaitedRounds
from prophet_scheduler.frontends.torch.probation import IN_VAIN, STEPS
from prophet_scheduler.frontends.torch.trace import PASSED_OVER, TRACED
from prophet_scheduler.learn.barrier import LEAST_ALIKE
from support.front_end import forget
from support.torch_network import (
    Network,
    NoCompression,
    Plain,
    Twins,
    batch,
    check_that_nothing_stays,
    gradient_of,
    install,
    loss_of,
    make_model,
    same,
    same_model,
    train,
)


def wrapper_class(network: Network) -> Any:
    """A class as byteps.torch.parallel has it, as far as the front end takes its place."""

    class DistributedDataParallel(nn.Module):
        registered = 0

        def __init__(self, module: nn.Module, compression: Any = NoCompression) -> None:
            super().__init__()
            self.module = module
            self._compression = compression
            self._require_backward_grad_sync = True
            if network.size() > 1:
                self._register_hooks()

        @contextlib.contextmanager
        def no_sync(self) -> Iterator[None]:
            self._require_backward_grad_sync = False
            yield
            self._require_backward_grad_sync = True

        def forward(self, *inputs: Any) -> Any:
            return self.module(*inputs)

        def _register_hooks(self) -> None:
            type(self).registered += 1

        def synchronize(self) -> None:
            raise AssertionError("BytePS's own")

    return DistributedDataParallel


@pytest.fixture(params=[False, True], ids=["apart", "fused"])
def network(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """`network.parallel` is the wrapper's class, with the front end in its place."""
    forget()
    made: Any = Network()
    made.parallel = wrapper_class(made)
    distributed = types.SimpleNamespace(DistributedDataParallel=made.parallel)
    for name, module in (
        ("", made),
        (".parallel", types.ModuleType("parallel")),
        (".parallel.distributed", distributed),
    ):
        monkeypatch.setitem(sys.modules, f"{made.__name__}{name}", module)
    for kind in vars(torch.optim).values():  # whose step() is another one from the first module on
        if isinstance(kind, type) and "step" in vars(kind):
            monkeypatch.setattr(kind, "step", vars(kind)["step"])
    monkeypatch.setattr(steps, "_installed", False)
    install(monkeypatch, made, fusion=request.param)
    yield made
    made.shutdown()


class Wrapped(Twins):
    """A model in one process, and its twin in BytePS's wrapper."""

    def alike(self) -> bool:
        return same(self.optimizer.state_dict(), self.plain.optimizer.state_dict()) and same_model(
            self.model.module, self.truth
        )


def pair(network: Any, half: torch.dtype | None = None, make_model: Callable[[], nn.Module] = make_model) -> Wrapped:
    truth, model = make_model(), make_model()
    plain = Plain(torch.optim.Adam(truth.parameters(), 1e-2), half)
    compression = network.Compression.none if half is None else network.Compression.fp16
    ddp = network.parallel(model, compression=compression)
    return Wrapped(truth, plain, ddp, torch.optim.Adam(model.parameters(), 1e-2))


def clip(twins: Twins, number: int) -> list[torch.Tensor]:
    """Compute gradients, and return their norms, by which they are clipped."""
    for model, optimizer in twins.sides:
        optimizer.zero_grad()
        loss_of(model, number).backward()
    twins.plain.synchronize()
    return [nn.utils.clip_grad_norm_(model.parameters(), 0.3) for model, _ in twins.sides]


def step(twins: Twins) -> None:
    """Step by the gradients as they are."""
    with twins.plain.skip_synchronize():
        twins.plain.step()
    twins.optimizer.step()


def test_backward_and_step_return_while_averages_fly(network: Any) -> None:
    truth, plain, ddp, optimizer = twins = pair(network)
    train(truth, plain)
    train(ddp, optimizer, steps=5)
    optimizer.zero_grad()
    loss_of(ddp, 5).backward()
    assert network.flying, "backward has returned"
    optimizer.step()
    assert network.flying, "and the step"
    assert twins.alike()
    assert network.parallel.registered == 0


def test_clipping_by_the_norm_of_all_is_seen_and_not_watched_for_good(network: Any) -> None:
    twins = pair(network)
    rounds: Any = modules.rounds_of(twins.model)
    assert rounds._probation.watches
    for number in range(IN_VAIN + 2):
        clip(twins, number)
        step(twins)
    assert rounds._keyed._iterations._waits.holds and not rounds._probation.watches
    twins.train(IN_VAIN + 2, STEPS + LEAST_ALIKE + 1)
    assert network.flying and not rounds._keyed._iterations._waits.holds
    assert twins.alike()


def test_half_precision_has_bytepss_bits(network: Any) -> None:
    twins = pair(network, half=torch.float16)
    twins.train(steps=5)
    assert {tensor.dtype for _, tensor, _ in network.flying.values()} == {torch.float16}
    assert twins.alike()


def test_its_forward_passes_are_traced_with_the_same_bits(network: Any) -> None:
    cuts = CutBoard(Cut.uniform(MOST_BLOCK_BYTES))
    board = cuts.trace = TraceBoard("tictac", TicTac)
    front_end.install(network, fusion=False, board=cuts)
    twins = pair(network)
    last = 1 + PASSED_OVER + TRACED
    twins.train(steps=last - 1)
    assert not network.flying and board.found is NOTHING, "step() waits meanwhile"
    twins.train(last - 1, 4)
    assert network.flying and board.found.policy is not None
    assert twins.alike()


class Branches(nn.Module):
    """A part that is skipped now and then."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.first, self.some, self.last = nn.Linear(6, 9), nn.Linear(9, 9), nn.Linear(9, 3)

    def forward(self, inputs: torch.Tensor, skips: bool) -> torch.Tensor:
        hidden = self.first(inputs)
        result: torch.Tensor = self.last(hidden if skips else self.some(hidden))
        return result


@pytest.mark.parametrize("set_to_none", [False, True])
def test_a_branch_that_is_skipped_has_the_others_average_after_synchronize(network: Any, set_to_none: bool) -> None:
    twins = pair(network, make_model=Branches)
    for number in range(6):
        inputs, labels = batch(number)
        for called, each in twins.sides:
            each.zero_grad(set_to_none=set_to_none)
            nn.functional.cross_entropy(called(inputs, number % 3 == 1), labels).backward()
        if number % 3 == 1:
            twins.model.synchronize()
        twins.optimizer.step()
        twins.plain.step()
    assert twins.alike()


def test_a_second_backward_pass_without_synchronize_is_refused(network: Any) -> None:
    ddp = network.parallel(Branches())
    inputs, labels = batch(0)
    nn.functional.cross_entropy(ddp(inputs, True), labels).backward()
    with pytest.raises(AssertionError, match="Call synchronize"):
        nn.functional.cross_entropy(ddp(inputs, True), labels).backward()
    ddp.synchronize()


def test_first_gradients_are_contiguous_whatever_the_layout_of_parameters(network: Any) -> None:
    model = nn.Conv2d(3, 4, 5).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    network.parallel(model)
    assert all(p.grad is not None and p.grad.is_contiguous() and not p.grad.any() for p in model.parameters())


def test_unsupported_compression_keeps_bytepss_wrapper_with_one_warning(
    network: Any, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        ddp = network.parallel(make_model(), compression=object())
    assert network.parallel.registered == 2
    assert caplog.messages == ["Prophet: this module keeps BytePS's barrier: it uses a compression other than fp16"]
    with pytest.raises(AssertionError, match="BytePS's own"):
        ddp.synchronize()


def test_a_handler_that_comes_while_an_optimizer_begins_to_step_late_finds_its_state(
    network: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    twins = pair(network)
    seen: list[Any] = []

    def interrupted(optimizer: Any, updates: Any) -> None:
        begin(optimizer, updates)
        seen.append(optimizer.state_dict())

    begin = late_optimizer.begin
    monkeypatch.setattr(steps, "begin", interrupted)
    twins.train()
    assert len(seen) == 1
    assert twins.alike()


def test_a_resume_is_nothing_to_modules_of_another_engine(network: Any) -> None:
    model = make_model()
    other = AwaitedRounds(model.named_parameters(), 0)
    torch_guards.watch(other, list(other.slots))
    twins = pair(network)
    twins.train(steps=2)
    network.suspend()
    network.resume()
    assert other in torch_guards.owners()
    torch_guards.note_uses(other, False)


def test_after_a_suspend_rounds_begin_anew(network: Any) -> None:
    twins = pair(network)
    twins.train(steps=3)
    network.suspend()
    network.resume()
    twins.train(first=3, steps=3)
    assert twins.alike()


@pytest.mark.parametrize("stepped", [True, False], ids=["updates", "gradients"])
def test_the_end_gives_up_averages_that_never_come(
    network: Any, stepped: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    twins = pair(network)
    twins.train(first=0, steps=STEPS + 1)
    loss_of(twins.model, STEPS + 1).backward()
    if stepped:
        twins.optimizer.step()
    network.acknowledged = True
    clock = itertools.count()
    passes = types.SimpleNamespace(monotonic=lambda: next(clock))
    monkeypatch.setattr(modules, "time", passes)
    monkeypatch.setattr(torch_updates, "time", passes)
    monkeypatch.setattr(network, "wait_activity", lambda limit_s: None)
    network.shutdown()
    assert caplog.messages == ["Prophet: updates were still outstanding when the job ended, and nothing moved any more"]
    rounds: Any = modules.rounds_of(twins.model)
    assert not any(slot.life.to_come for slot in rounds.slots), "a later use waits for nothing"
    network.shut_down = False  # for the fixture's own end


def test_a_module_that_is_gone_with_averages_to_come_leaves_nothing_once_they_are_back(network: Any) -> None:
    def start() -> None:
        _, _, model, optimizer = pair(network)
        train(model, optimizer, 0, STEPS + 1)

    check_that_nothing_stays(network, start)


class Straight(torch.autograd.Function):
    """Function whose forward saves a weight that only backward reads."""

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(inputs, weight)
        return torch.sign(inputs)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        inputs, weight = ctx.saved_tensors
        return grads[0] * weight, (grads[0] * inputs).sum(0)


class Saving(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 3)
        self.late = nn.ParameterList([nn.Parameter(torch.ones(6))])
        self.kept = list(self.late)

    def forward(self, inputs: torch.Tensor) -> Any:
        return self.last(Straight.apply(self.first(inputs), self.kept[0]))  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("newest_first", [False, True])
def test_a_function_saves_a_weight_that_it_does_not_read(network: Any, newest_first: bool) -> None:
    network.newest_first = newest_first
    twins = pair(network, make_model=Saving)
    twins.train(steps=8)
    assert twins.alike()


def test_averages_arrive_in_inference_mode_in_gradients_of_which_only_aliases_are_kept(network: Any) -> None:
    ddp = network.parallel(make_model())
    params = list(ddp.module.parameters())
    kept = [gradient_of(param).data for param in params]
    loss_of(ddp, 0).backward()
    for param in params:
        param.grad = None
    with torch.inference_mode():
        assert all(bool(each.any()) for each in kept)


def test_a_hook_that_is_registered_after_a_step_does_not_run_for_its_updates(
    network: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.optim.Adam([nn.Parameter(torch.ones(1))])  # torch wraps the class's step() now.
    monkeypatch.setattr(steps, "_installed", False)
    ddp = network.parallel(make_model())
    optimizer = torch.optim.Adam(ddp.module.parameters(), 1e-2)
    train(ddp, optimizer, 0, 5)
    assert network.flying
    calls = []
    optimizer.register_step_post_hook(lambda *_: calls.append("step"))
    for param in ddp.module.parameters():
        param.sum()
    assert calls == []


def test_gradients_that_are_parts_of_a_graph_are_averaged(network: Any) -> None:
    twins = pair(network)
    twins.train(steps=3)
    for model, optimizer in twins.sides:
        optimizer.zero_grad()
        loss_of(model, 3).backward(create_graph=True)
    with torch.no_grad():
        twins.plain.synchronize()
    grads = [[gradient_of(param).detach() for param in model.parameters()] for model, _ in twins.sides]
    assert all(map(torch.equal, *grads))
