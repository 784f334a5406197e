"""Uses of a parameter that no module sees: kept references, groups, shared memory, modes, processes."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import threading
from collections.abc import Callable, Iterator
from multiprocessing.reduction import ForkingPickler
from typing import Any

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from prophet_scheduler.frontends.torch import references
from support.torch_network import (
    Network,
    Plain,
    batch,
    loss_of,
    make_model,
    pair,
    peek,
    plain_sgd,
    same,
    same_model,
    train,
    twins_of,
    weight_of,
    wrap,
)

Params = list[torch.Tensor]


def group_params(optimizer: Any) -> Iterator[torch.Tensor]:
    for group in getattr(optimizer, "optimizer", optimizer).param_groups:
        yield from group["params"]


@torch.no_grad()
def clamp(params: Params) -> None:
    for p in params:
        p.clamp_(-0.05, 0.05)


def through_keywords(params: Params) -> None:
    for p in params:
        torch.add(input=p.detach(), other=torch.ones(()), out=p.detach())


EDITS = [clamp, through_keywords]


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("kept", [True, False], ids=["kept-list", "param_groups"])
def test_edits_after_step_find_updated_values(any_order: Network, edit: Callable[[Params], None], kept: bool) -> None:
    twins = pair(any_order)
    for some_model, some_optimizer in twins.sides:
        params = list(some_model.parameters())
        for number in range(2, 6):
            train(some_model, some_optimizer, number, 1)
            assert bool(any_order.flying) == (some_model is twins.model), "updates must still be on their way"
            edit(params if kept else list(group_params(some_optimizer)))
    assert twins.alike()


Program = Callable[[Any, Any], Any]
PROGRAMS: list[Program] = []
"""What programs do with a model and its optimizer; what a program returns must be the same without Prophet."""


def program(function: Program) -> Program:
    PROGRAMS.append(function)
    return function


@program
def never_clears_gradients(model: nn.Module, optimizer: Any) -> list[Any]:
    """As with stock BytePS, backward then adds to the average."""
    for number in range(2, 5):
        loss_of(model, number).backward()
        optimizer.step()
    return [p.grad for p in model.parameters()]


@program
def traces_without_updates(model: nn.Module, optimizer: Any) -> list[Any]:
    train(model, optimizer, 2, 1)
    graph = torch.jit.trace(model.eval(), batch(9)[0])
    model.train()
    return [graph.code, graph.inlined_graph.str().count("aten"), graph(batch(8)[0]).detach()]


@program
def goes_back_through_a_graph_from_before_the_step(model: nn.Module, optimizer: Any) -> None:
    optimizer.zero_grad()
    first, second = loss_of(model, 2), loss_of(model, 3)
    first.backward()
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        second.backward()


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: str(program.__name__))
def test_a_program_has_the_bits_that_it_has_without_prophet(any_order: Network, program: Program) -> None:
    twins = pair(any_order)
    assert same(*(program(*side) for side in twins.sides))
    assert twins.alike()


@pytest.mark.parametrize(
    "look",
    [
        lambda p: (p.shape, p.dtype, p.device, p.numel(), p.size(0), p.requires_grad, p.is_leaf, p.dim(), len(p)),
        lambda p: p.grad is None,
        lambda p: setattr(p, "grad", None),
        lambda p: hash(p),
        lambda p: p.requires_grad_(True),
    ],
)
def test_properties_without_values_wait_for_nothing(network: Network, look: Callable[[torch.Tensor], Any]) -> None:
    _, _, model, optimizer = pair(network)
    params = list(model.parameters())
    train(model, optimizer, 2, 1)
    flying = len(network.flying)
    for p in params:
        look(p)
    assert len(network.flying) == flying == 8


def test_schedulers_and_options_of_groups_wait_for_nothing(network: Network) -> None:
    _, _, model, optimizer = pair(network)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    train(model, optimizer, 2, 1, schedule)
    optimizer.param_groups[0]["lr"] *= 0.5
    assert len(network.flying) == 8


def test_groups_leave_as_plain_lists(network: Network) -> None:
    _, _, _, optimizer = pair(network)
    params = optimizer.param_groups[0]["params"]
    for copied in (copy.copy(params), copy.deepcopy(params), pickle.loads(pickle.dumps(params)), [*params]):
        assert type(copied) is list
    assert [id(p) for p in reversed(params)] == [id(p) for p in params][::-1]
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))]})
    assert type(optimizer.param_groups[1]["params"]) is type(params)


class Counting(TorchFunctionMode):
    """A mode of the program's own."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls.append(getattr(func, "__name__", ""))
        return func(*args, **(kwargs or {}))


def test_modes_of_the_program_come_and_go_as_they_like(network: Network) -> None:
    """Modes that it enters and leaves while updates are pending take themselves off the stack."""
    gc.collect()  # optimizers of other tests, of which it is still learned how they are used
    truth, plain, model, optimizer = pair(network)
    params = list(model.parameters())
    assert torch._C._len_torch_function_stack() == 0
    train(truth, plain, 2, 2)
    train(model, optimizer, 2, 1)
    with Counting() as outer:
        assert network.flying
    before = len(outer.calls)
    with torch.device("cpu"), Counting() as inner:
        clamp([params[0]])
        assert "clamp_" in inner.calls
        assert not [name for name in inner.calls if "sgd" in name.lower() or name == "add_"], inner.calls
    assert len(outer.calls) == before
    clamp([next(truth.parameters())])
    train(model, optimizer, 3, 1)
    assert network.flying
    assert same_model(model, truth) is False, "the clamped one was not in between"
    assert torch._C._len_torch_function_stack() == 0, "nothing is pending: no mode is left"


def test_a_mode_of_dispatch_does_not_see_updates(network: Network) -> None:
    class Seeing(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()  # type: ignore[no-untyped-call]  # torch's
            self.ops: list[str] = []

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.ops.append(str(func))
            return func(*args, **(kwargs or {}))

    twins = pair(network)
    twins.train(2, 1)
    while network.flying:
        network.deliver()
    seen = []
    for some_model in (twins.truth, twins.model):
        with torch.no_grad(), Seeing() as mode:
            some_model(batch(3)[0])
        seen.append(mode.ops)
    assert seen[0] == seen[1]
    assert twins.alike()


def test_gradients_of_a_graph_from_before_the_step_are_added_to_the_average(network: Network) -> None:
    """A layer whose weight is not needed for the gradient: nothing fails, with or without Prophet."""

    def layer() -> nn.Module:
        torch.manual_seed(3)
        return nn.Linear(6, 3)

    twins = twins_of(network, plain_sgd, layer)
    for some_model, some_optimizer in twins.sides:
        train(some_model, some_optimizer, 0, 3)
        for number in range(3, 6):
            first, second = loss_of(some_model, number), loss_of(some_model, number + 10)
            first.backward()
            some_optimizer.step()
            second.backward()
            some_optimizer.step()
    assert twins.alike()
    assert same(*([p.grad for p in m.parameters()] for m, _ in twins.sides))


@pytest.mark.parametrize("hook", [False, True])
def test_synchronize_and_step_are_rounds_whatever_happened_here_since_the_last(network: Network, hook: bool) -> None:
    """As BytePS's are: on another worker a gradient may have come, or been changed, and it waits for this one."""
    twins = pair(network)
    twins.train(2, 1)
    for _, optimizer in twins.sides:
        pushed = len(network.pushed)
        if hook:
            getattr(optimizer, "optimizer", optimizer).register_step_post_hook(lambda *_: None)
            optimizer.step()
        else:
            optimizer.synchronize()
    assert len(network.pushed) == pushed + 8
    with references.blind():
        assert same([p.grad for p in twins.model.parameters()], [p.grad for p in twins.truth.parameters()])
    twins.train(3, 3)
    assert twins.alike()


def test_synchronize_without_a_gradient_takes_part_in_the_round(network: Network) -> None:
    """A worker without a batch clears its gradients and joins the others, who wait for it."""
    _, _, model, optimizer = pair(network)
    train(model, optimizer, 2, 1)
    optimizer.zero_grad()
    pushed = len(network.pushed)
    optimizer.synchronize()
    assert len(network.pushed) == pushed + 8
    with optimizer.skip_synchronize():
        optimizer.step()
    assert len(network.pushed) == pushed + 8


def test_finish_updates_sends_nothing(network: Network) -> None:
    truth, _, model, optimizer = twins = pair(network)
    twins.train(2, 1)
    optimizer.zero_grad()
    pushed = len(network.pushed)
    optimizer.finish_updates()
    assert not network.flying
    assert len(network.pushed) == pushed
    assert torch.equal(peek(model[0]), weight_of(truth[0]))


def test_parameters_sent_to_another_process_are_up_to_date(network: Network) -> None:
    """By the thread of a queue, too, which knows no mode of ours."""
    truth, _, model, _ = twins = pair(network)
    params = list(model.parameters())
    twins.train(2, 1)
    network.newest_first = True
    thread = threading.Thread(target=lambda: ForkingPickler(io.BytesIO()).dump([params[0], params[1].data]))
    thread.start()
    thread.join()
    assert torch.equal(peek(model[0]), weight_of(truth[0]))
    assert torch.equal(peek(model[0], "bias"), weight_of(truth[0], "bias"))
    assert len(network.flying) == 6


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_view_of_numpy_finds_the_updates_while_it_lives(network: Network, when: str) -> None:
    made: list[Any] = []

    def make(params: Any) -> torch.optim.Optimizer:
        made[:] = params
        views[:] = [p.detach().numpy() for p in made] if when == "before" else []
        return plain_sgd(made)

    views: list[Any] = []
    twins = twins_of(network, make)
    twins.train(0, 2)
    if when == "after":
        views = [p.detach().numpy() for p in made]
    twins.train(2, 2)
    assert all((view == p.detach().numpy()).all() for view, p in zip(views, twins.truth.parameters(), strict=True))
    views.clear()
    twins.train(4, 1)
    # torch marks what NumPy had before like memory of NumPy's own.
    assert len(network.flying) == (8 if when == "after" else 0), "nobody holds them any more"
    assert twins.alike()


def test_a_kept_state_dict_costs_no_overlap(network: Network) -> None:
    """Its tensors share the parameters' memory, but whoever reads them asks torch."""
    twins = pair(network)
    best = [some_model.state_dict() for some_model in (twins.truth, twins.model)]
    for number in range(2, 4):
        twins.train(number, 1)
        assert len(network.flying) == 8
        assert same({k: v.clone() for k, v in best[0].items()}, {k: v.clone() for k, v in best[1].items()})


def test_state_has_the_order_that_the_optimizer_gives_it(any_order: Network) -> None:
    """torch.save writes it in this order, whatever came first."""
    truth, model = make_model(), make_model()
    orders = []
    for some_model, wrapped in ((truth, False), (model, True)):
        last: dict[str, Any] = {"params": some_model[5].parameters()}
        bare = torch.optim.Adam([last, {"params": some_model[:4].parameters(), "lr": 0.01}], 0.1)
        optimizer = wrap(any_order, some_model, bare) if wrapped else bare
        train(some_model, optimizer if wrapped else Plain(bare), 0, 4)
        orders.append(list(optimizer.state_dict()["state"]))
    assert orders[0] == orders[1]


def test_an_optimizer_wrapped_after_a_compilation_keeps_the_barrier(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._dynamo import convert_frame

    monkeypatch.setattr(convert_frame, "FRAME_COUNTER", 1)
    model = make_model()
    optimizer = wrap(network, model, torch.optim.SGD(model.parameters(), 0.1))
    train(model, optimizer, 0, 4)
    assert not network.flying


def test_a_view_of_numpy_finds_the_updates_of_parameters_in_one_flat_tensor(network: Network) -> None:
    twins = pair(network)
    views = []
    for model, _ in twins.sides:
        params = list(model.parameters())
        flat = torch.cat([p.detach().flatten() for p in params])
        for p, part in zip(params, flat.split([p.numel() for p in params]), strict=True):
            p.data = part.view_as(p)
    twins.train(2, 1)
    views = [[p.detach().numpy() for p in model.parameters()] for model in (twins.truth, twins.model)]
    for number in (3, 4):
        twins.train(number, 1)
        assert all((mine == truth).all() for truth, mine in zip(*views, strict=True))
