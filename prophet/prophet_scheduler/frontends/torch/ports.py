"""Interfaces between this package and an engine's front end for torch, beside `Arena` and `AverageSource`.

Rule of this file: interfaces with their promises. An engine's front end has an object for what it averages together, an
optimizer or a module, its *rounds*, and for each optimizer its *updates*; they may be one and the same. guards.py
notices who uses a parameter, and calls them from that thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch

    from prophet_scheduler.frontends.torch.arena import Slot


class Watcher(Protocol):
    """Rounds whose parameters guards.py watches (`guards.watch`).

    The engine calls `guards.learned(self)` when it knows how the program reaches its parameters, and
    `guards.release(self)` when it has nothing pending any more.
    """

    def flush(self, patience_s: float | None = None) -> bool:
        """Bring home all that is to come. False if some still is after `patience_s` without any progress."""
        ...

    def keep_barrier(self) -> None:
        """Keep every update within its step(), and every average within its backward pass, from now on: the program
        uses parameters in a way that cannot be noticed.
        """
        ...

    def before_compilation(self) -> None:
        """Prepare for torch.compile to make code of a module of the program: no hook of the engine may be on it."""
        ...


class GradientSource(Protocol):
    """Methods that a parameter's hooks call (`Slot.hook`), within backward. A failure is the program's exception."""

    def _gradient_comes(self, slot: Slot, /, *gradients: Any) -> None:
        """Make the last round's average or update before a gradient is added to `.grad`."""
        ...

    def _gradient_ready(self, slot: Slot, /, *gradients: Any) -> None:
        """Stage the gradient in `.grad` where it is due, and send blocks that are complete."""
        ...


class UpdateOwner(Protocol):
    """Owner of an optimizer's updates, for guards.py while some are pending (`guards.keep`). `Updates` is one."""

    def flush(self, patience_s: float | None = None) -> bool:
        """Make all of them. False if some are to come after `patience_s` without any progress."""
        ...

    def finish(self, slots: Sequence[Slot], patience_s: float | None = None) -> bool:
        """Make those of these parameters, after their averages have come. False as above."""
        ...

    def state_of(self, slot: Slot) -> list[torch.Tensor]:
        """Return what else an update changes, to which the program may have references."""
        ...

    def state_is_held(self, slot: Slot) -> bool:
        """True if the program, which has dropped the optimizer, holds any of that."""
        ...

    def forget(self, slots: Iterable[Slot]) -> None:
        """Drop the updates of these parameters, which nobody can look at any more."""
        ...


class Awaited(Protocol):
    """Rounds that let backward return before averages are in `.grad` (`guards.keep_gradients`).

    An engine whose step() averages has none of this: its slots are never `awaited`.
    """

    def flush(self, patience_s: float | None = None) -> bool:
        """Do as a Watcher does."""
        ...

    def settle(self, slots: Iterable[Slot]) -> None:
        """Wait until `.grad` of these is their average."""
        ...

    def forget(self, slots: Iterable[Slot]) -> None:
        """Forget slots that nobody has any more."""
        ...
