"""What this package and an engine's front end for torch owe each other, beside `Arena` and `AverageSource`.

Rule of this file: interfaces with their promises. An engine's front end has an object for what it averages together, an
optimizer or a module, its *rounds*, and for each optimizer its *updates*; they may be one and the same. Who uses a
parameter is noticed by guards.py, which calls them from whatever thread that is in.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch

    from prophet_scheduler.frontends.torch.arena import Slot


class Watcher(Protocol):
    """What guards.py asks of rounds whose parameters it watches (`guards.watch`).

    The engine owes `guards.learned(self)` when it knows how the program reaches its parameters, and
    `guards.release(self)` when nothing of it is pending any more.
    """

    def flush(self, patience_s: float | None = None) -> bool:
        """Brings home all that is to come; False if some still is after `patience_s` without any progress."""
        ...

    def keep_barrier(self) -> None:
        """From now on no update outlasts step(), and no average that comes to a `.grad` its backward pass: the program
        uses parameters in a way that cannot be noticed.
        """
        ...

    def before_compilation(self) -> None:
        """torch.compile is about to make code of a module of the program: none of the engine's hooks may be on it."""
        ...


class GradientSource(Protocol):
    """What a parameter's hooks call (`Slot.hook`), within backward; a failure there is the program's exception."""

    def _gradient_comes(self, slot: Slot, /, *gradients: Any) -> None:
        """Before a gradient is added to `.grad`: the last round's average or update is made first."""
        ...

    def _gradient_ready(self, slot: Slot, /, *gradients: Any) -> None:
        """`.grad` has it: where it is due, it is staged, and blocks that are complete leave."""
        ...


class UpdateOwner(Protocol):
    """What guards.py asks of an optimizer's updates while some are pending (`guards.keep`). `Updates` is one."""

    def flush(self, patience_s: float | None = None) -> bool:
        """Makes all of them; False if some are to come after `patience_s` without any progress."""
        ...

    def finish(self, slots: Sequence[Slot], patience_s: float | None = None) -> bool:
        """Makes those of these parameters, after their averages have come; False as above."""
        ...

    def state_of(self, slot: Slot) -> list[torch.Tensor]:
        """What an update changes besides, and the program may have references to."""
        ...

    def state_is_held(self, slot: Slot) -> bool:
        """Whether the program has any of that, which has dropped the optimizer."""
        ...

    def forget(self, slots: Iterable[Slot]) -> None:
        """Nobody can look at these parameters any more: their updates need not be made."""
        ...


class Awaited(Protocol):
    """What guards.py asks of rounds that let backward return before averages are in `.grad` (`guards.keep_gradients`).

    An engine whose step() averages has none of this: its slots are never `awaited`.
    """

    def flush(self, patience_s: float | None = None) -> bool:
        """As a Watcher's."""
        ...

    def settle(self, slots: Iterable[Slot]) -> None:
        """Waits until `.grad` of these is their average."""
        ...

    def forget(self, slots: Iterable[Slot]) -> None:
        """Nobody has them any more."""
        ...
