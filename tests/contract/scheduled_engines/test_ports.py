"""Both engines against the ports of the library: what mypy has to accept, and what it cannot see.

Rule of this file: no job. Each function hands an engine's objects to names with a port's type; that it passes the type
checker is the test, and it is called with nothing.
"""

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
from prophet_scheduler.frontends.torch.ports import Awaited, GradientSource, UpdateOwner, Watcher
from prophet_scheduler.frontends.torch.steps import ModuleUpdates
from prophet_scheduler.frontends.torch.updates import AverageSource, Updates


def byteps(
    arena: KeyedArena, rounds: OptimizerRounds
) -> tuple[Arena, Watcher, GradientSource, UpdateOwner, AverageSource]:
    """An optimizer's rounds are its updates, too."""
    return arena, rounds, rounds, rounds, rounds


def byteps_modules(rounds: KeyedModuleRounds) -> tuple[Watcher, GradientSource, Awaited, AverageSource]:
    """A module's rounds; its updates are the library's."""
    return rounds, rounds, rounds, rounds


def ddp(
    arena: DdpArena, rounds: ModuleRounds, updates: ModuleUpdates
) -> tuple[Arena, Watcher, GradientSource, Awaited, UpdateOwner, AverageSource]:
    """A module's rounds, and an optimizer's updates, whose parameters may be of several modules."""
    return arena, rounds, rounds, rounds, updates, rounds


@pytest.mark.parametrize("arena", [KeyedArena, DdpArena])
def test_an_arena_says_how_a_block_travels_and_when_it_is_back(arena: type[Arena]) -> None:
    for name in ("_send", "_back"):
        own, base = getattr(arena, name), getattr(Arena, name)
        assert own is not base, "Arena's own raises NotImplementedError"
        assert list(inspect.signature(own).parameters) == list(inspect.signature(base).parameters)


@pytest.mark.parametrize("rounds", [OptimizerRounds, KeyedModuleRounds, ModuleRounds])
def test_what_a_parameters_hooks_call_is_there_by_name(rounds: type) -> None:
    for name in ("_gradient_comes", "_gradient_ready"):
        assert callable(getattr(rounds, name)), "Slot.hook finds it by name alone"


@pytest.mark.parametrize("updates", [OptimizerRounds, ModuleUpdates])
def test_updates_are_those_of_the_library(updates: type) -> None:
    assert issubclass(updates, Updates)
    for name in ("finish", "state_of"):
        assert name not in vars(updates), "how updates are made is no engine's"
