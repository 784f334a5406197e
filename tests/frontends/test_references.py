"""Tests of what it costs to watch a program's calls of torch, and of what the watch sees of their arguments."""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import io
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.fx.experimental.proxy_tensor import make_fx
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.overrides import (
    TorchFunctionMode,
    _get_current_function_mode_stack,
    handle_torch_function,
    has_torch_function_unary,
)
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from prophet_scheduler.frontends.torch import between, references
from prophet_scheduler.frontends.torch.memory import storage_key

Used = list[tuple[Any, ...]]


@pytest.fixture
def pending() -> torch.Tensor:
    """A parameter with an update to come."""
    return torch.arange(9.0).reshape(3, 3)


@pytest.fixture
def used(pending: torch.Tensor) -> Iterator[Used]:
    """List of what the watch has seen of `pending`."""
    seen: Used = []
    references.stop_here(for_good=True)  # An earlier test's module may still have this thread watched.
    references.watch_here({storage_key(pending): ("update",), -1: ("another",)}, {}, {}, seen.append)
    yield seen
    references.stop_here()


def lines_of_ours(action: Callable[[], object]) -> int:
    """Return the number of Prophet's lines that an action runs."""
    count = 0

    def line(frame: FrameType, event: str, _value: object) -> Any:
        nonlocal count
        count += event == "line"
        return line

    def call(frame: FrameType, _event: str, _value: object) -> Any:
        return line if "/prophet_scheduler/frontends/" in frame.f_code.co_filename else None

    sys.settrace(call)
    try:
        action()
    finally:
        sys.settrace(None)
    return count


def network(layers: int) -> nn.Module:
    return nn.Sequential(*(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)) for _ in range(layers)))


def averaged(model: nn.Module) -> Callable[[], object]:
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    ema.update_parameters(model)
    return lambda: ema.update_parameters(model)


def in_a_loop(model: nn.Module) -> Callable[[], object]:
    other = copy.deepcopy(model)

    def update() -> None:
        with torch.no_grad():
            for mine, theirs in zip(other.state_dict().values(), model.state_dict().values(), strict=True):
                mine.copy_(theirs)

    return update


def in_a_list(model: nn.Module) -> Callable[[], object]:
    params = [param.detach() for param in model.parameters()]
    return lambda: torch._foreach_mul_(params, 0.5)


def checkpoint(model: nn.Module) -> Callable[[], object]:
    return lambda: torch.save({"model": model.state_dict(), "step": 1}, io.BytesIO())


def logged(model: nn.Module) -> Callable[[], object]:
    return lambda: {name: value.float().mean().item() for name, value in model.state_dict().items()}


@pytest.mark.parametrize(
    "action",
    [
        lambda model: lambda: copy.deepcopy(model),
        lambda model: lambda: copy.deepcopy(model.state_dict()),
        lambda model: lambda: torch.save(model, io.BytesIO()),
        *(averaged, in_a_loop, in_a_list, checkpoint, logged),
    ],
    ids=["deepcopy", "a copied state", "a saved model", "EMA", "a loop", "foreach", "a checkpoint", "a logger"],
)
def test_watching_what_is_done_in_each_iteration_costs_in_proportion_to_the_model(
    used: Used, action: Callable[[nn.Module], Callable[[], object]]
) -> None:
    few, many = (lines_of_ours(action(network(layers))) for layers in (8, 16))
    assert few > 0
    assert many < 2.1 * few


def nested(tensor: torch.Tensor, config: Any) -> torch.Tensor:
    """Function of a program's own that supports __torch_function__."""
    if has_torch_function_unary(tensor):
        result: torch.Tensor = handle_torch_function(nested, (tensor,), tensor, config)
        return result
    return tensor


@pytest.mark.parametrize(
    "config",
    [
        lambda size: {number: [number] for number in range(size)},
        lambda size: [[{"a": list(range(size))}]],
        lambda size: [{"a": [[]] * size}],
    ],
)
def test_what_an_argument_refers_to_costs_nothing(
    used: Used, pending: torch.Tensor, config: Callable[[int], Any]
) -> None:
    other = torch.ones(1)
    nested(other, config(1))  # At its first call we find out that it is not torch's.
    few, many = (lines_of_ours(lambda size=size: nested(other, config(size))) for size in (3, 3000))  # type: ignore[misc]
    assert few == many
    few, many = (
        lines_of_ours(lambda size=size: other.__deepcopy__({0: list(range(size))}))  # type: ignore[misc]
        for size in (3, 3000)
    )
    assert few == many


def test_numbers_in_a_list_are_not_looked_at_one_by_one(used: Used) -> None:
    few, many = (lines_of_ours(lambda size=size: torch.tensor([0.5] * size)) for size in (3, 3000))  # type: ignore[misc]
    assert few == many
    assert not used


def cyclic(kind: str) -> Any:
    itself: Any = {} if kind == "dict" else []
    if kind == "dict":
        itself["self"] = itself
    else:
        itself.append((itself,) if kind == "tuple" else itself)
    return itself


@pytest.mark.parametrize("kind", ["list", "dict", "tuple"])
def test_what_contains_itself_is_an_argument_like_any_other(used: Used, kind: str) -> None:
    other = torch.ones(2)
    assert nested(other, cyclic(kind)) is other
    assert nested(other, [cyclic(kind)]) is other
    module = nn.BatchNorm1d(2)
    module.config = cyclic(kind)
    copy.deepcopy(module)
    with pytest.raises((TypeError, ValueError, RuntimeError)):
        torch.tensor(cyclic(kind))  # type: ignore[arg-type]


READS: dict[str, Callable[[torch.Tensor], object]] = {
    "a function": lambda p: p + 1,
    "by name": lambda p: torch.add(input=torch.ones(3, 3), other=p),
    "a list": lambda p: torch.stack([p, p]),
    "a tuple": lambda p: torch.cat((torch.ones(3, 3), p)),
    "foreach": lambda p: torch._foreach_add([p], [torch.ones(3, 3)]),
    "lists in lists": lambda p: torch.tensor([[[p.diagonal()[0]]]]),
    "an index": lambda p: torch.ones(9)[(p.long(),)],
    "an index in a list": lambda p: torch.ones(9, 2)[[p.long().view(-1), 1]],
    "a method's list": lambda p: torch.ones(9).new_tensor([[p[0, 0], p[1, 1]]]),
    "an equation": lambda p: torch.einsum("ij,jk", [p, p]),
    "a copy": lambda p: copy.deepcopy(p),
    "a pickle": lambda p: torch.save({"p": p}, io.BytesIO()),
}


@pytest.mark.parametrize("name", READS)
def test_torch_reads_nothing_unseen(used: Used, pending: torch.Tensor, name: str) -> None:
    READS[name](pending)
    assert used


def test_lists_of_numbers_of_a_tensor_kept_from_before_are_seen_at_any_depth(used: Used, pending: torch.Tensor) -> None:
    with references.blind():
        number = pending[0, 0]
    for values in ([number], [[number]], [[[number]], [[1.0]]], (([[number]],),)):
        del used[:]
        torch.tensor(values)
        assert used == [("update",)], values


def test_a_tensor_made_of_one_from_before_is_seen(used: Used, pending: torch.Tensor) -> None:
    with references.blind():
        both: Any = TwoTensor
        whole = both(torch.ones(3, 3), both(torch.ones(3, 3), pending.detach()))
        other = both(torch.ones(3, 3), torch.ones(3, 3))
    other + 1
    assert not used
    for action in (lambda: whole + 1, lambda: torch.stack([other, whole]), lambda: whole.clone()):
        del used[:]
        action()
        assert used == [("update",)]


class Holder:
    """Object of a program's own that supports __torch_function__."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return 0


class Calls(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def in_a_dispatch_mode() -> None:
    with Calls():  # type: ignore[no-untyped-call]
        torch.ones(1)


def with_saved_tensors_packed() -> None:
    with saved_tensors_hooks(lambda saved: saved, lambda saved: saved):
        torch.ones(1)


RUNS_MORE: dict[str, Callable[[torch.Tensor], object]] = {
    "somebody's own function": lambda p: nested(torch.ones(1), [1, "two", (3.0)]),
    "and what it gets": lambda p: nested(torch.ones(1), {"p": p}),
    "an object": lambda p: torch.add(Holder(p), 1),  # type: ignore[call-overload]
    "objects in a list": lambda p: torch.stack([Holder(p)]),  # type: ignore[list-item]
    "a copy with attributes": lambda p: copy.deepcopy(torch.ones(1)),
    "a function for each element": lambda p: torch.ones(1).apply_(lambda value: value),
    "and for two": lambda p: torch.ones(1).map_(torch.ones(1), lambda value, other: value),  # type: ignore[attr-defined]
    "a mode": lambda p: in_a_dispatch_mode(),
    "hooks": lambda p: with_saved_tensors_packed(),
}


@pytest.mark.parametrize("name", RUNS_MORE)
def test_a_call_that_may_run_code_of_the_program_may_read_anything(
    used: Used, pending: torch.Tensor, name: str
) -> None:
    RUNS_MORE[name](pending)
    assert used and set(used) == {("update", "another")}


REPLACED: dict[str, tuple[Any, Callable[[torch.Tensor], object]]] = {
    "backward": (torch.Tensor, lambda p: p.clone().requires_grad_().sum().backward()),
    "softmax": (nn.functional, lambda p: nn.functional.softmax(p, 1)),
    "split": (torch.functional, lambda p: torch.functional.split(p, 1)),
    "mul_": (torch.Tensor, lambda p: p.mul_(2)),
    "__getitem__": (torch.Tensor, lambda p: p[0]),
}


@pytest.mark.parametrize("alike", [False, True], ids=["with a name of its own", "in torch's name"])
@pytest.mark.parametrize("name", REPLACED)
def test_what_the_program_puts_in_place_of_a_function_runs_once(
    monkeypatch: pytest.MonkeyPatch, used: Used, pending: torch.Tensor, name: str, alike: bool
) -> None:
    owner, use = REPLACED[name]
    original, calls = getattr(owner, name), []

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls.append(name)
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, functools.wraps(original)(counted) if alike else counted)
    gc.freeze()  # as a program does before it forks
    use(pending)
    gc.unfreeze()
    assert calls == [name] and set(used) == {("update",)}


def test_a_method_that_prophet_has_put_in_place_runs_no_code_of_the_program(
    monkeypatch: pytest.MonkeyPatch, used: Used, pending: torch.Tensor
) -> None:
    monkeypatch.setattr(torch.Tensor, "numpy", torch.Tensor.numpy)  # Restores the method afterwards.
    between.call_before(torch.Tensor, "numpy", lambda _tensor: None)
    torch.ones(1).numpy()
    assert not used
    pending.numpy()
    assert set(used) == {("update",)}


def in_torchs_own_mode() -> None:
    with FlopCounterMode(display=False):
        torch.ones(1)


def kept_on_the_processor() -> None:
    with save_on_cpu():
        torch.ones(1)


class Own(torch.Tensor):
    """Class of a program's own that overrides nothing."""


@pytest.mark.parametrize("kind", [nn.Parameter, Own])
def test_what_overrides_nothing_reads_its_arguments_alone(used: Used, pending: torch.Tensor, kind: Any) -> None:
    tensor = pending.as_subclass(kind)
    del used[:]
    tensor.detach().add(torch.ones(2, 3, 3))
    tensor.data.softmax(0)
    assert set(used) == {("update",)}


@pytest.mark.parametrize("action", [in_torchs_own_mode, kept_on_the_processor])
def test_torchs_own_modes_and_hooks_read_nothing_more(used: Used, action: Callable[[], None]) -> None:
    action()
    assert not used


class OfTheProgram(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


WARN: dict[str, Callable[[], object]] = {
    "a function": lambda: torch.add(torch.ones(2), 1, out=torch.ones(5)),
    "an attribute": lambda: (torch.ones(2, requires_grad=True) * 2).grad,
    "an index": lambda: torch.ones(2)[torch.tensor([0, 1], dtype=torch.uint8)],
}


@pytest.mark.parametrize("name", WARN)
def test_torch_warns_of_the_programs_line(used: Used, name: str) -> None:
    with pytest.warns(UserWarning) as warned:
        WARN[name]()
    code = WARN[name].__code__
    assert [(each.filename, each.lineno) for each in warned] == [(__file__, code.co_firstlineno)]


FAIL: dict[str, Callable[[], object]] = {
    "a function": lambda: torch.mm(torch.ones(2), torch.ones(3)),
    "by name": lambda: torch.add(torch.ones(2), 1, alpha="one"),  # type: ignore[call-overload]
    "an attribute": lambda: setattr(torch.ones(2), "grad", torch.ones(3)),
    "no attribute": lambda: torch.ones(2).nonsense,  # type: ignore[attr-defined]
    "a function of Python": lambda: torch.split(torch.ones(2), "one"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", FAIL)
def test_torch_fails_as_without_being_watched(used: Used, name: str) -> None:
    def failed() -> tuple[type, str, list[str]]:
        with pytest.raises(Exception) as raised:
            FAIL[name]()
        frames = traceback.extract_tb(raised.value.__traceback__)
        return (
            raised.type,
            str(raised.value),
            [frame.filename for frame in frames if "torch/overrides" not in frame.filename],
        )

    watched = failed()
    references.stop_here()
    kind, text, files = failed()
    assert watched[:2] == (kind, text)
    # Under a mode, torch calls its Python functions anew.
    assert list(dict.fromkeys(watched[2])) == list(dict.fromkeys(files))


def test_a_gradient_is_looked_at_under_a_lock_which_is_free_after_an_error(
    used: Used, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[bool] = []
    monkeypatch.setattr(warnings, "showwarning", lambda *_: held.append(owned()))

    def owned() -> bool:
        return bool(references.swapping._is_owned())  # type: ignore[attr-defined]

    with warnings.catch_warnings(action="always"):
        assert WARN["an attribute"]() is None
    assert held == [True] and not owned()
    with pytest.raises(RuntimeError, match="assign a gradient"):
        FAIL["an attribute"]()
    assert not owned()


def test_a_watch_that_begins_under_a_device_of_the_program_outlasts_it(used: Used, pending: torch.Tensor) -> None:
    references.stop_here()
    with torch.device("meta"):
        references.watch_here({storage_key(pending): ("update",)}, {}, {}, used.append)
    assert torch.ones(1).is_cpu
    assert references.watching_here() and len(_get_current_function_mode_stack()) == 1


def faked(tensor: torch.Tensor) -> torch.Size:
    with FakeTensorMode() as mode:
        return mode.from_tensor(tensor).mm(torch.empty(3, 2)).shape


def in_modes(tensor: torch.Tensor) -> torch.Tensor:
    with OfTheProgram(), torch.device("meta"), OfTheProgram():
        return tensor.add(other=torch.ones(3, 3, device="cpu"), alpha=2)


WAYS: dict[str, Callable[[torch.Tensor], Any]] = {
    "vmap": lambda p: torch.func.vmap(lambda value: value * 2)(p) + p,
    "a derivative": lambda p: torch.func.grad(lambda value: value.square().sum())(p) + p,
    "fake tensors": faked,
    "modes": in_modes,
    "a graph": lambda p: make_fx(lambda value: value.relu() + 1)(p).code,
    "a subclass": lambda p: p.as_subclass(nn.Parameter).add(1).type(),
    "a function of Python": lambda p: torch.nn.functional.softmax(p, dim=0, dtype=torch.float64),
}


@pytest.mark.parametrize("name", WAYS)
def test_torch_works_as_without_being_watched(used: Used, pending: torch.Tensor, name: str) -> None:
    watched = WAYS[name](pending)
    references.stop_here()
    plain = WAYS[name](pending)
    assert torch.equal(watched, plain) if isinstance(plain, torch.Tensor) else watched == plain
    assert used


def interrupted(place: int, action: Callable[[], object]) -> bool:
    """Run an action with a KeyboardInterrupt before the instruction of that number, of those in references.py. Return
    False if the action ended before that.
    """
    left = place

    def step(frame: FrameType, event: str, _value: object) -> Any:
        nonlocal left
        if event == "opcode":
            left -= 1
            if left < 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return step

    def call(frame: FrameType, _event: str, _value: object) -> Any:
        if frame.f_code.co_filename != references.__file__:
            return None
        frame.f_trace_opcodes = True
        return step

    sys.settrace(call)
    with contextlib.suppress(KeyboardInterrupt):
        try:
            action()
        finally:
            sys.settrace(None)
    return left < 0


def marked() -> None:
    with references.at_work(), references.blind(), references.waiting():
        pass
    with references.at_work(), references.waiting(), references.at_work():
        pass


def watched_again() -> None:
    with references.aside():
        pass
    references.stop_here()
    references.watch_here({}, {}, {}, lambda _: None)


@pytest.mark.parametrize("action", (marked, watched_again))
def test_no_interrupt_leaves_a_thread_blind(used: Used, pending: torch.Tensor, action: Callable[[], object]) -> None:
    modes, place = len(_get_current_function_mode_stack()), 0
    tables: tuple[Any, ...] = {storage_key(pending): ("update",)}, {}, {}, used.append
    while interrupted(place, action):
        place += 1
        assert not (references.is_at_work() or references.is_blind()), place
        references.watch_here(*tables)
        assert len(_get_current_function_mode_stack()) == modes, place
        references.stop_here()
        references.watch_here(*tables)
        del used[:]
        pending.sum()
        assert used, place
    assert place > 3
