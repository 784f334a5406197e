"""Both engines against the interfaces of the library, as far as mypy cannot see. Rule of this file: no job."""

from __future__ import annotations

import inspect

import pytest

pytest.importorskip("torch")

from prophet_byteps.torch.keyed_arena import KeyedArena
from prophet_byteps.torch.modules import KeyedModuleRounds
from prophet_byteps.torch.rounds import OptimizerRounds
from prophet_ddp.arena import DdpArena
from prophet_ddp.rounds import ModuleRounds
from prophet_scheduler.frontends.torch.arena import Arena
from prophet_scheduler.frontends.torch.steps import ModuleUpdates
from prophet_scheduler.frontends.torch.updates import Updates


@pytest.mark.parametrize("arena", [KeyedArena, DdpArena])
def test_an_arena_says_how_a_block_travels_and_when_it_is_back(arena: type[Arena]) -> None:
    for name in ("_send", "_back"):
        own, base = getattr(arena, name), getattr(Arena, name)
        assert own is not base, "Arena's own raises NotImplementedError"
        assert list(inspect.signature(own).parameters) == list(inspect.signature(base).parameters)


@pytest.mark.parametrize("rounds", [OptimizerRounds, KeyedModuleRounds, ModuleRounds])
def test_what_hooks_and_guards_call_is_there_by_name(rounds: type) -> None:
    for name in ("_gradient_comes", "_gradient_ready", "flush", "keep_barrier", "before_compilation"):
        assert callable(getattr(rounds, name)), "Slot.hook and guards.watch find it by name alone"


@pytest.mark.parametrize("updates", [OptimizerRounds, ModuleUpdates])
def test_updates_are_those_of_the_library(updates: type) -> None:
    assert issubclass(updates, Updates)
    for name in ("finish", "state_of"):
        assert name not in vars(updates), "how updates are made is no engine's"
