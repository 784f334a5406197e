"""The order of modules, and which of them are gathered ahead."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

from torch.distributed.fsdp._fully_shard._fsdp_common import TrainingState

from prophet_fsdp.order import AHEAD, ModuleOrder


class Module:
    """Sharded module in a forward pass, as FSDP2 shows it."""

    def __init__(self, name: str, *own: Any) -> None:
        self.name = name
        self.ahead: list[str] = []
        self.done: list[str] = []
        context = SimpleNamespace(iter_forward_root=self, all_states=[])
        self.group = SimpleNamespace(_training_state=TrainingState.FORWARD, fsdp_params=[])
        self._state = SimpleNamespace(
            _state_ctx=context,
            _states_to_forward_prefetch=[*own],
            _states_to_backward_prefetch=[],
            _fsdp_param_groups=[self.group],
            _training_state=TrainingState.IDLE,
        )

    def _get_fsdp_state(self) -> Any:
        return self._state

    def set_modules_to_forward_prefetch(self, modules: list[Module]) -> None:
        self.ahead = [module.name for module in modules]

    def unshard(self) -> None:
        self.done.append("unshard")

    def reshard(self) -> None:
        self.done.append("reshard")


def settled(*modules: Module) -> ModuleOrder:
    """Order after a first pass of these modules."""
    order = ModuleOrder()
    for module in modules:
        order.gathers(module)
    order.settle()
    return order


def test_the_first_pass_shows_the_order() -> None:
    modules = [Module(name) for name in "abcd"]
    order = settled(*modules, modules[1])
    assert AHEAD == 2
    assert [module.ahead for module in modules] == [["b", "c"], ["c", "d"], ["d"], []]
    order.gathers(Module("e"))
    order.settle()
    assert modules[3].ahead == [], "it is settled"


def test_the_lists_of_a_program_stay() -> None:
    modules = [Module("a"), Module("b", "its own")]
    settled(*modules)
    assert not any(module.ahead for module in modules)


def test_what_a_program_asks_for_outlives_the_pass() -> None:
    computing, asked_for, unused = Module("computing"), Module("asked for"), Module("unused")
    order = settled(computing, asked_for, unused)
    state = computing._get_fsdp_state()
    state._training_state, state._states_to_forward_prefetch = TrainingState.FORWARD, [asked_for._get_fsdp_state()]
    for module in (asked_for, unused):
        module._get_fsdp_state()._state_ctx.all_states.append(state)
        order.gathers(module)
    unused._get_fsdp_state()._state_ctx.iter_forward_root = None
    order.forward_ends(unused)
    assert unused.done == ["unshard", "reshard"]
    assert not asked_for.done


def test_no_gathering_ahead_outlives_its_forward_pass() -> None:
    used, unused, asked_for = modules = [Module("used"), Module("unused"), Module("asked for")]
    order = settled(*modules)
    asked_for.group._training_state = TrainingState.IDLE
    for module in modules:
        order.gathers(module)
    order.came(used)
    order.forward_ends(used)
    assert not unused.done, "the pass goes on"
    used._state._state_ctx.iter_forward_root = None
    order.forward_ends(used)
    assert (used.done, unused.done, asked_for.done) == ([], ["unshard", "reshard"], [])
