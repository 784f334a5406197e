"""DistributedDataParallel on a GPU, without one: real rounds, issuer, arena and late updates on a device that is late.

The device does what it is given later, each stream for itself (support/lazy_device.py), so a missing wait gives
other weights. WAITS are left out one by one, to see that each would show.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

from prophet_ddp import device_arena, issuer
from prophet_ddp.arena import DdpArena
from prophet_ddp.comm_hooks import KNOWN
from prophet_ddp.control import Control, Decision
from prophet_ddp.device_arena import DeviceArena, DeviceOperation, Told
from prophet_ddp.events import EventLog
from prophet_ddp.issuer import Issuer, JointOperation, RankGroups
from prophet_ddp.layout import Channel, RoundTerms
from prophet_ddp.rounds import ModuleRounds
from prophet_scheduler.core.cut import Borders, Cut
from prophet_scheduler.core.events import EventKind
from prophet_scheduler.frontends.torch import program_state, steps
from prophet_scheduler.frontends.torch.updates import Updates
from prophet_scheduler.policies.algorithms.sequence import LEAST_AT_ONCE
from support.front_end import forget
from support.lazy_device import Device, HostWait, LazyGroup, LazyMode, LazyStreams, LazyWatch, NcclWork, peers

RANKS = 2
STEPS = 7
TOTAL_BYTES = 372
Weights = list[torch.Tensor]


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Updates stay on the device, which is a mode here, and a job that failed leaves nothing to the next test."""
    monkeypatch.setattr(program_state, "of_now", tuple)
    monkeypatch.setattr(program_state, "can_hold_later", lambda held: True)
    yield
    forget()


def make_model() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2))


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, foreach=False)


INPUTS = [torch.randn(4, 6, generator=torch.Generator().manual_seed(number)) for number in range(STEPS)]


def loss_of(model: nn.Module, number: int) -> torch.Tensor:
    result: torch.Tensor = model(INPUTS[number]).square().sum()
    return result


def clip(model: nn.Module) -> None:
    for param in model.parameters():
        assert param.grad is not None
        param.grad.clamp_(-0.05, 0.05)


def expected(clips: Callable[[int], bool], small: bool) -> Weights:
    """Return the weights without Prophet and without a device."""
    model = make_model()
    optimizer = optimizer_of(model)
    for number in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, number).backward()
        with torch.no_grad():
            for param in model.parameters():
                assert param.grad is not None
                if small:
                    param.grad.copy_(peers(param.grad.to(torch.bfloat16).div_(RANKS)))
                else:
                    param.grad.copy_(peers(param.grad.mul(1.0 / RANKS)))
        if clips(number):
            clip(model)
        optimizer.step()
    return [param.detach().clone() for param in model.parameters()]


def _accumulation(param: torch.Tensor) -> Any:
    """Return the node of autograd that adds to the parameter's `.grad`."""
    function: Any = param.view_as(param).grad_fn
    return function.next_functions[0][0]


class Job:
    """One rank's part on a device, with all that is real but the device."""

    def __init__(
        self,
        seed: int,
        uses_vary: bool = False,
        small: bool = False,
        hasty: bool = False,
        arranges: bool = False,
        backwards: bool = False,
    ) -> None:
        self.device = Device(seed)
        self.chance = self.device.chance
        self.lazy = LazyStreams(self.device)
        self.group = LazyGroup(self.device)
        self.log = EventLog(open=True)
        self.issuer = Issuer(RankGroups(self.group), self.log)  # type: ignore[arg-type]
        self.issuer._moved = HostWait(self.device)  # type: ignore[assignment]
        self.control = Control(self.issuer, 0, 1)
        self.model = make_model()
        self.optimizer = optimizer_of(self.model)
        self.uses_vary = uses_vary
        self.agreed: list[int] = []
        self.issued: list[int] = []
        self.arena: Callable[..., DdpArena] = functools.partial(
            _Noting,
            readies=_Hasty() if hasty else LazyWatch(self.device),
            ends=LazyWatch(self.device),
            issued=self.issued,
        )
        self.rounds = ModuleRounds(
            list(self.model.named_parameters())[:: -1 if backwards else 1],
            1,
            Channel(self.issuer, self.control, self.log, RANKS, lambda error, _iteration: error, str),
            RoundTerms(lambda sizes: self.some_cut(), uses_vary=uses_vary, arranges=arranges),
            self,  # type: ignore[arg-type]
        )
        if small:
            self.rounds.average_by(KNOWN[default_hooks.bf16_compress_hook])
        append = self.issuer.append

        def note(operations: list[JointOperation]) -> None:
            self.agreed += [each.id for each in operations if isinstance(each, DeviceOperation)]
            append(operations)

        self.issuer.append = note  # type: ignore[method-assign]
        self._ends: dict[torch.Tensor, Any] = {}
        self.side: dict[torch.Tensor, Any] = {param: self.lazy._make() for param in self.model.parameters()}

    def streams(self, _device: torch.device, /) -> LazyStreams:
        return self.lazy

    def some_cut(self) -> Cut:
        return Borders.at(self.chance.sample(range(0, TOTAL_BYTES, 4), self.chance.randrange(9)), TOTAL_BYTES)

    def run(self, clips: Callable[[int], bool] = lambda number: False, sides: bool = False) -> Weights:
        if sides:
            for param in self.model.parameters():
                param.register_hook(functools.partial(self._to_its_stream, param))
                end = self._ends[param] = _accumulation(param)
                end.register_hook(lambda *_: setattr(self.device, "current", self.device.main))
        made = steps._updates_of(self.optimizer)
        assert made is not None
        with LazyMode(self.device):
            for number in range(STEPS):
                self.optimizer.zero_grad()
                self.rounds.forward_begins()
                loss = loss_of(self.model, number)
                self.rounds.forward_ends([loss] if self.uses_vary else [])
                loss.backward()
                self._back_to_main()
                self.rounds.backward_ends()
                if self.chance.random() < 0.5 and self.rounds.layout.cut is not None:
                    count = len(self.rounds.layout.blocks_under(cut := self.some_cut()))
                    self.control.want(Decision(cut, tuple(self.chance.sample(range(count), count))))
                if clips(number):
                    clip(self.model)
                made.step(None)
                for _ in range(self.chance.randrange(20)):
                    self.device.step()
            self.rounds.flush()
            assert self.issuer.quiet()
        self.device.run()
        self.slots, self.registered = list(self.rounds.slots), list(self.rounds.registered)
        self.rounds.remove()
        return [param.detach().clone() for param in self.model.parameters()]

    def _to_its_stream(self, param: torch.Tensor, _gradient: torch.Tensor) -> None:
        """Switch to the parameter's stream for work on the gradient, as autograd does if forward was on that stream."""
        self.side[param].wait_event(self.device.current.record_event())
        self.device.current = self.side[param]

    def _back_to_main(self) -> None:
        self.device.current = self.device.main
        for stream in self.side.values():
            self.device.main.wait_event(stream.record_event())


class _Hasty:
    """An EventWatcher that does not look at the device."""

    def when(self, _events: Any, then: Told) -> None:
        then(None)


class _Silent:
    """An EventWatcher that leaves it to the test to tell."""

    def __init__(self) -> None:
        self.told: list[Told] = []

    def when(self, _events: Any, then: Told) -> None:
        self.told.append(then)


class _Noting(DeviceArena):
    def __init__(self, *args: Any, issued: list[int], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.ids = issued

    def _issue(self, operation: DeviceOperation, *args: Any) -> Any:
        self.ids.append(operation.id)
        return super()._issue(operation, *args)


def same(left: Weights, right: Weights) -> bool:
    return all(torch.equal(mine, other) for mine, other in zip(left, right, strict=True))


@given(
    seed=st.integers(0, 1 << 32),
    clipped=st.sets(st.integers(0, STEPS - 1)),
    sides=st.booleans(),
    uses_vary=st.booleans(),
    small=st.booleans(),
    arranges=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_a_late_device_ends_with_the_same_bits(
    seed: int, clipped: set[int], sides: bool, uses_vary: bool, small: bool, arranges: bool
) -> None:
    job = Job(seed, uses_vary, small, arranges=arranges)
    assert same(job.run(clipped.__contains__, sides), expected(clipped.__contains__, small))
    assert job.issued == job.agreed, "the device gets operations in the agreed order"
    assert 0 < job.device.most_in_flight <= LEAST_AT_ONCE
    assert job.device.in_flight == 0


def test_from_the_second_round_on_gradients_lie_as_the_first_backward_pass_made_them() -> None:
    """Parameters are registered in another order than the model uses them in."""
    job = Job(1, arranges=True, backwards=True)
    names = [slot.name for slot in job.rounds.slots]
    assert names[-1] == next(name for name, _ in job.model.named_parameters())
    came: list[str] = []
    for slot in job.rounds.slots:
        _accumulation(slot.param).register_hook(lambda *_, name=slot.name: came.append(name))
    job.run()
    assert [slot.name for slot in job.slots] == list(reversed(came[: len(names)])) != names
    assert [slot.place for slot in job.slots] == list(range(len(names)))
    assert [slot.name for slot in job.registered] == names, "what torch's reducer would find"


def _no_wait(*_arguments: object) -> None:
    pass


WAITS: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "for an average before its use": (LazyStreams, "before_average", _no_wait),
    "for copies and updates": (LazyStreams, "follow", _no_wait),
    "for the end of the collective": (NcclWork, "wait", _no_wait),
}


@pytest.mark.parametrize("wait", WAITS)
def test_each_wait_that_is_left_out_shows(monkeypatch: pytest.MonkeyPatch, wait: str) -> None:
    holder, name, without = WAITS[wait]
    monkeypatch.setattr(holder, name, without, raising=False)
    right = expected(lambda number: False, False)
    assert any(not same(Job(seed).run(sides=True), right) for seed in range(25))


@pytest.mark.parametrize("left_out", [False, True])
def test_the_collective_waits_for_the_copies_on_the_device_too(monkeypatch: pytest.MonkeyPatch, left_out: bool) -> None:
    if left_out:
        monkeypatch.setattr(DeviceOperation, "copies", property(lambda self: [], _no_wait), raising=False)
    right = expected(lambda number: False, False)
    assert all(same(Job(seed, hasty=True).run(sides=True), right) for seed in range(8)) != left_out


def staged(job: Job) -> None:
    """The gradients of one backward pass are given to the device, which has not begun with the first."""
    job.optimizer.zero_grad()
    job.rounds.forward_begins()
    loss = loss_of(job.model, 0)
    job.rounds.forward_ends([])
    loss.backward()
    job.rounds.backward_ends()


def test_readiness_and_what_is_learned_follow_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(1)
    for module in (device_arena, issuer):
        monkeypatch.setattr(module, "time", types.SimpleNamespace(monotonic=lambda: job.device.now_s))
    with LazyMode(job.device):
        staged(job)
        assert job.issued == [], "the host is ahead: nothing is there yet"
        assert len(job.log.drain()) == 0
        job.device.run()
    events = job.log.drain()
    added = events[events["kind"] == EventKind.ADD]
    assert len(added) == len(job.agreed)
    assert added["time_s"].min() > 0
    assert len(set(added["time_s"])) > 1
    job.rounds.remove()


@pytest.mark.parametrize("seed", [5, 6, 7, 8])
def test_an_update_is_made_before_its_average_is_there_and_waits_on_the_device(seed: int) -> None:
    job = Job(seed)
    made = steps._updates_of(job.optimizer)
    assert made is not None
    with LazyMode(job.device):
        for _ in range(3):  # probation, and one that may be late
            staged(job)
            made.step(None)
        pending = [slot for slot in job.rounds.slots if slot.life.pending]
        assert pending, "step() does not wait"
        first = pending[0]
        made.finish([first])
        assert not first.life.pending
        assert not all(end.passed for end in first.ends())
        job.rounds.flush()
        job.device.run()
    assert all(torch.isfinite(param).all() for param in job.model.parameters())
    job.rounds.remove()


@pytest.mark.parametrize("seed", [5, 6, 7])
def test_what_nobody_waits_for_is_not_updated_before_it_has_landed(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    updated: list[bool] = []
    original = Updates._update

    def update(self: Updates, slots: Any) -> None:
        updated.extend(job.rounds.landed(slot) for slot in slots[1:])
        original(self, slots)

    monkeypatch.setattr(Updates, "_update", update)
    job = Job(seed)
    made = steps._updates_of(job.optimizer)
    assert made is not None
    with LazyMode(job.device):
        for number in range(6):
            staged(job)
            made.step(None)
            updated.clear()
            if number >= 2:
                made.finish(made._order[:1])
                assert all(updated)
        job.rounds.flush()
        job.device.run()
    job.rounds.remove()


def test_the_end_waits_for_what_the_device_has_yet_to_make() -> None:
    job = Job(2)
    with LazyMode(job.device):
        staged(job)
        assert job.issued == []
        assert job.issuer.quiet()
        assert job.issued == job.agreed
    job.rounds.remove()


def test_an_operation_that_cannot_be_issued_is_an_error_for_who_waits() -> None:
    job = Job(4)
    with LazyMode(job.device):
        staged(job)
        job.group.failing = ValueError("NCCL is gone")
        with pytest.raises(ValueError, match="NCCL is gone"):
            job.rounds.flush()


def test_what_the_device_says_of_copies_is_an_error_for_who_waits() -> None:
    job = Job(4)
    watch: Any = _Silent()
    ends: Any = LazyWatch(job.device)
    job.arena = functools.partial(DeviceArena, readies=watch, ends=ends)
    with LazyMode(job.device):
        staged(job)
        watch.told[0](RuntimeError("CUDA error: an illegal memory access was encountered"))
        with pytest.raises(RuntimeError, match="illegal memory access"):
            job.rounds.flush()


def test_backward_within_a_capture_is_refused_with_what_to_do() -> None:
    job = Job(4)
    job.lazy.captures = True
    with LazyMode(job.device), pytest.raises(RuntimeError, match="train without PROPHET_DDP_NCCL"):
        staged(job)
