"""What it costs to watch the program's calls of torch, and what the watching sees of their arguments."""

from __future__ import annotations

import copy
import io
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.overrides import handle_torch_function, has_torch_function_unary

from prophet_scheduler.frontends.torch import references

Used = list[tuple[Any, ...]]


@pytest.fixture
def pending() -> torch.Tensor:
    """A parameter with an update to come."""
    return torch.arange(9.0).reshape(3, 3)


@pytest.fixture
def used(pending: torch.Tensor) -> Iterator[Used]:
    """What the watching has seen of it."""
    seen: Used = []
    references.watch_here({references.storage_key(pending): ("update",), -1: ("another",)}, {}, {}, seen.append)
    yield seen
    references.stop_here()


def lines_of_ours(action: Callable[[], object]) -> int:
    """How many lines of Prophet's an action runs."""
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
    """Somebody's own function of torch's kind."""
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


def test_somebodys_own_function_may_read_whatever_its_arguments_hold(used: Used, pending: torch.Tensor) -> None:
    for config in ({"p": pending}, [[pending]], [{"p": 1}]):
        del used[:]
        nested(torch.ones(1), config)
        assert used == [("update", "another")]
    del used[:]
    nested(torch.ones(1), [1, "two", (3.0)])
    assert not used
    nested(torch.ones(1), [pending])
    assert used == [("update",)]
