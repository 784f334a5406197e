"""Interfaces between this package and an engine's front end for torch, in addition to `Arena` and `AverageSource`.

Rule of this file: interfaces and their contracts. An engine's front end has *rounds*, an object for each unit that it
averages together (an optimizer or a module), and *updates* for each optimizer; both may be the same object. guards.py
detects uses of a parameter, and calls these objects from the using thread.
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
        """Finish all awaited averages and pending updates. Return False after `patience_s` without any progress."""
        ...

    def keep_barrier(self) -> None:
        """From now on, finish every update within its step() and every average within its backward pass: the program
        uses parameters in a way that cannot be detected.
        """
        ...

    def before_compilation(self) -> None:
        """Prepare for torch.compile to compile a module of the program: no hook of the engine may be on the module."""
        ...


class GradientSource(Protocol):
    """Methods that a parameter's hooks (`Slot.hook`) call within backward. The program gets any exception."""

    def _gradient_comes(self, slot: Slot, /, *gradients: Any) -> None:
        """Finish the last round's average or update before a gradient is added to `.grad`."""
        ...

    def _gradient_ready(self, slot: Slot, /, *gradients: Any) -> None:
        """Stage the gradient in `.grad` if it is due, and send blocks that are complete."""
        ...


class UpdateOwner(Protocol):
    """Owner of an optimizer's updates, used by guards.py while some are pending (`guards.keep`). `Updates` is one."""

    def flush(self, patience_s: float | None = None) -> bool:
        """Make all pending updates. Return False if some remain after `patience_s` without any progress."""
        ...

    def finish(self, slots: Sequence[Slot], patience_s: float | None = None) -> bool:
        """Make the updates of these parameters, once their averages have arrived. Return False as `flush` does."""
        ...

    def state_of(self, slot: Slot) -> list[torch.Tensor]:
        """Return the other tensors changed by an update, to which the program may have references."""
        ...

    def state_is_held(self, slot: Slot) -> bool:
        """Return True if the program, which has dropped the optimizer, still holds any tensor of `state_of`."""
        ...

    def forget(self, slots: Iterable[Slot]) -> None:
        """Drop the updates of these parameters, which can no longer be accessed."""
        ...


class Awaited(Protocol):
    """Rounds that let backward return before averages are in `.grad` (`guards.keep_gradients`).

    An engine that averages in step() has no such rounds: its slots are never `awaited`.
    """

    def flush(self, patience_s: float | None = None) -> bool:
        """Do the same as in a Watcher."""
        ...

    def settle(self, slots: Iterable[Slot]) -> None:
        """Wait until `.grad` of these slots holds the average."""
        ...

    def forget(self, slots: Iterable[Slot]) -> None:
        """Expect no averages for these slots, which can no longer be accessed."""
        ...
