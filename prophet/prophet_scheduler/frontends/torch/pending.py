"""Table of what pending updates and awaited averages will change, by memory: guards.py looks up every use in it.

Rule of this file: it changes the table and finishes nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch

from prophet_scheduler.forks import free_in_forks
from prophet_scheduler.frontends.torch import aliases, references
from prophet_scheduler.frontends.torch.life import Life
from prophet_scheduler.frontends.torch.memory import StorageKey, overlapping, parts_of, storage_key, storage_of

if TYPE_CHECKING:
    from prophet_scheduler.frontends.torch.slot import Slot
    from prophet_scheduler.frontends.torch.updates import Updates


class Pending:
    """The table. `by_memory` has the slots with a pending update or an awaited average by each storage that will
    change: parameter, gradient and the optimizer's state. `kept` has slots by owner, for owners with any of these, and
    keeps them alive, since the program may drop them.
    """

    def __init__(self) -> None:
        self.by_memory: dict[StorageKey, tuple[Slot, ...]] = {}
        self.kept: dict[Any, list[Slot]] = {}
        self._sent: set[StorageKey] = set()
        """Keys of gradients in `by_memory`, which the program may free. For each, a weak reference of torch keeps the
        key from being reused: an activation of the next forward pass would wait for an unrelated parameter.
        """
        self._changing = free_in_forks(threading.RLock())
        """Held while the table changes: each thread may train a module of its own."""

    def slots(self) -> list[Slot]:
        """Return the slots of all owners. A signal handler may change the table while they are handled."""
        return [slot for slots in list(self.kept.values()) for slot in slots]

    def add_updates(self, owner: Updates, slots: Iterable[Slot]) -> set[Slot]:
        """Note that updates of `slots` are pending. They change the parameters and `owner.state_of(slot)`.

        Return the slots whose updates must not be late, because something holds the memory of parameter, gradient or
        state unseen, or because they share state or parts of parameters.
        """
        exposed: set[Slot] = set()
        states: dict[StorageKey, Slot] = {}
        together: dict[StorageKey, list[tuple[Slot, torch.Tensor]]] = {}
        with self._changing, references.unhandled():
            self.kept[owner] = list(slots)
            for slot in self.kept[owner]:
                param = slot.param
                storage = storage_of(param)
                if storage is None:  # The tensor is of an unusual kind, so its uses cannot be detected.
                    exposed.add(slot)
                    continue
                if slot.watched.memory.exposed(storage, param.is_cpu) or aliases.is_kept(storage):
                    exposed.add(slot)
                self._add(storage._cdata, slot)
                together.setdefault(storage._cdata, []).append((slot, param))
                if self._add_sent(slot)[1]:
                    exposed.add(slot)
                own = parts_of(param)[1:]
                for place, part in enumerate(chain(own, *map(parts_of, owner.state_of(slot)))):
                    memory = storage_of(part)
                    if memory is None:
                        continue
                    self._add(memory._cdata, slot)
                    if aliases.is_unseen(memory):
                        exposed.add(slot)
                    first = states.setdefault(memory._cdata, slot) if place >= len(own) else slot
                    if first is not slot:  # An update of one changes the other's state.
                        exposed |= {first, slot}
            for sharing in together.values():
                if len(sharing) > 1:  # The order of updates matters to parameters that overlap.
                    exposed |= overlapping(sharing)
        return exposed

    def add_gradients(self, rounds: Any, slots: Iterable[Slot]) -> tuple[list[Slot], list[Slot]]:
        """Note that the `.grad` of `slots` awaits averages.

        Return the slots whose gradient shares memory with another parameter's, and those whose gradient something may
        read unseen.
        """
        with self._changing, references.unhandled():
            self.kept[rounds] = list(slots)
            sent = {slot: self._add_sent(slot) for slot in self.kept[rounds]}
            keys = {*chain(*(keys for keys, _ in sent.values()))}
            together = [self.by_memory[key] for key in keys if len(self.by_memory[key]) > 1]
        shared = [slot for sharing in together if len({id(slot.param) for slot in sharing}) > 1 for slot in sharing]
        return shared, [slot for slot, (_, lent) in sent.items() if lent]

    def add_within_backward(self, rounds: Any, slots: Iterable[Slot]) -> None:
        """Add gradients to those of `rounds`, for accesses by the program within backward."""
        with self._changing, references.unhandled():
            for slot in slots:
                self.kept.setdefault(rounds, []).append(slot)
                self._add_sent(slot)

    def add_copied(self, owner: Any, slots: Iterable[Slot]) -> None:
        """Note that `owner` has copied these parameters, which a write would make wrong."""
        with self._changing:
            self.kept[owner] = list(slots)
            for key, slot in keys_of(slots):
                self._add(key, slot)

    def remove_copied(self, owner: Any, slots: Iterable[Slot]) -> None:
        """Note that `owner` no longer has copies of these parameters."""
        with self._changing:
            self.kept.pop(owner, None)
            for key, slot in keys_of(slots):
                others = tuple(other for other in self.by_memory.pop(key, ()) if other is not slot)
                if others:
                    self.by_memory[key] = others

    def remove(self, owner: Any) -> None:
        """Note that nothing of `owner` is pending or awaited any more."""
        # A signal handler that removes another owner must not do so in between.
        with references.at_work(), self._changing:
            over = [slot for slot in self.kept.pop(owner, ()) if not slot.life.to_come]
            if not self.kept:
                self.by_memory.clear()
            elif over:  # step() may have taken over what backward left awaited.
                for key, slots in list(self.by_memory.items()):
                    others = tuple(slot for slot in slots if slot.life.to_come)
                    if not others:
                        del self.by_memory[key]
                    elif len(others) < len(slots):
                        self.by_memory[key] = others
            if over or not self.kept:
                for key in self._sent - self.by_memory.keys():
                    self._sent.discard(key)
                    torch.UntypedStorage._free_weak_ref(key)

    def clear(self) -> None:
        """Forget all, as a forked child does."""
        self.kept.clear()
        self.by_memory.clear()
        self._sent.clear()

    def has(self, slot: Slot) -> bool:
        """Return True if a use of the parameter, or of the sent gradient, will find the slot."""
        tensor = slot.param if slot.life.pending else slot.sent()
        key = 0 if tensor is None else storage_key(parts_of(tensor)[-1])
        return not key or slot in self.by_memory.get(key, ())

    def awaited_by(self, gradient: torch.Tensor) -> Slot | None:
        """Return the slot whose average this `.grad` awaits; None if several parameters or modules have it."""
        found = [slot for slot in self.by_memory.get(storage_key(gradient), ()) if slot.sent() is gradient]
        if len(found) != 1 or found[0].life is not Life.AWAITED:
            return None
        return found[0] if len(found[0].watched.slots) == 1 else None

    def touched_by_step(self, borrowed: Iterable[torch.Tensor], used: Iterable[torch.Tensor], owner: Any) -> list[Slot]:
        """Return the slots with awaited averages of gradients that a step of `owner` borrows, and with pending updates
        of other optimizers on the memory of these or of anything else that the step uses. Their order is the same on
        all ranks.
        """
        theirs = any(slot.life.pending and slot.owner is not owner for slot in self.slots())
        with references.unhandled():
            tensors = chain(borrowed, used) if theirs else borrowed
            keys = dict.fromkeys(storage_key(part) for each in tensors for part in parts_of(each))
        slots = dict.fromkeys(slot for key in keys for slot in self.by_memory.get(key, ()))
        return [slot for slot in slots if slot.life.awaited or slot.owner is not owner]

    def _add(self, key: StorageKey, slot: Slot) -> None:
        others = self.by_memory.get(key)
        if others is None:
            if key:
                self.by_memory[key] = (slot,)
        elif slot not in others:
            self.by_memory[key] = (*others, slot)

    def _add_sent(self, slot: Slot) -> tuple[list[StorageKey], bool]:
        """Add the slot's sent gradient. Return its keys, and True if something may read or write it unseen."""
        sent = slot.seen
        keys: list[StorageKey] = []
        unseen = False
        for part in parts_of(sent) if sent is not None else ():
            storage = storage_of(part)
            if storage is None:
                continue
            key: StorageKey = storage._cdata
            if key not in self._sent:
                storage._weak_ref()
                self._sent.add(key)
            self._add(key, slot)
            keys.append(key)
            unseen |= aliases.is_unseen(storage)
        return keys, unseen


def keys_of(slots: Iterable[Slot]) -> list[tuple[StorageKey, Slot]]:
    """Return the keys of each parameter's memory, with its slot."""
    with references.unhandled():
        return [(storage_key(part), slot) for slot in slots for part in parts_of(slot.param)]
