"""Which parameters have a part in a module's rounds, and how many gradients each of them gets.

Rule of this file: counting. rounds.py sends the gradients that are due.

Usually each parameter gets one gradient in a backward pass. With find_unused_parameters some get none, as forward's
outputs show. With a static graph the first backward pass shows each parameter's number of gradients.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch

from prophet_ddp.issuer import JointOperation
from prophet_ddp.reach import not_reached
from prophet_scheduler.frontends.torch.arena import Slot


class Uses:
    """Uses of a module's parameters, whose slots are in the order of registration.

    `vary`: a parameter may have no gradient in a round. `counted`: the graph is static, and a parameter may get several
    gradients in a backward pass.
    """

    def __init__(self, slots: Sequence[Slot], vary: bool, counted: bool) -> None:
        self.slots = slots
        self.vary = vary
        self.counted = counted
        self.expected = False
        """True if new gradients are to be averaged."""
        self._came: Counter[Slot] = Counter()
        """Number of gradients of each slot since the last forward pass."""
        self._counts: Counter[Slot] | None = None
        """Their number in each backward pass of a static graph; None until it is known."""
        self._unused: list[Slot] = []
        """Slots that get no gradient in this backward pass, until they are staged with the first one that does."""
        self._with_part: set[Slot] = set()
        """Slots that have had a gradient since the last round ended, even within no_sync(); in a static graph, up to
        the end of the first."""
        self.without: list[Slot] = []
        """Slots without a gradient in this round; other ranks may have had one for them."""
        self.by: torch.Tensor | None = None
        """Number of ranks that used each parameter in the last round, or in the first of a static graph, int32
        [parameters], once `by_known` has ended."""
        self.by_known: JointOperation | None = None

    @property
    def unused(self) -> Sequence[Slot]:
        """Slots that get no gradient in the next backward pass, as far as known."""
        if self._counts is None:
            return self._unused
        return [slot for slot in self.slots if not self._counts[slot]]

    @property
    def found(self) -> bool:
        """True if each forward pass has to show which parameters have no part."""
        return self.vary and not self.counted

    @property
    def counting(self) -> bool:
        """True until it is known how many gradients each parameter of a static graph gets."""
        return self.counted and self._counts is None

    @property
    def told(self) -> bool:
        """True unless ranks will learn at the end of the open round who used which parameters."""
        return self.by_known is None or self.by_known.ready

    def forward_ends(self, outputs: Sequence[torch.Tensor]) -> Sequence[Slot]:
        """Expect gradients. Return the slots that get none."""
        self.expected = True
        self._came.clear()
        if self._counts is not None:
            self._unused = list(self.unused)
        else:
            self._unused = not_reached(outputs, self.slots) if self.vary and outputs else []
        return self._unused

    def has_part(self, slot: Slot) -> None:
        """Record that the parameter has a part in the open round, or in the next one."""
        if self._counts is None:
            self._with_part.add(slot)

    def comes(self, slot: Slot) -> tuple[Sequence[Slot], bool]:
        """Count a gradient. Return the slots that are due now, and True if this gradient is one too many."""
        self._came[slot] += 1
        if self.counting:
            return (), False
        expected = 1 if self._counts is None else self._counts[slot]
        over, last = self._came[slot] > expected, self._came[slot] == expected
        if over and self._counts is None:
            return (), True
        unused, self._unused = self._unused, []
        if self._counts is None and unused:
            self._came.update(unused)  # A gradient for one of these would be one too many.
        return (slot, *unused) if last else unused, over

    def know_counts(self) -> None:
        """Expect the same counts in every later backward pass as in this one."""
        self._counts = Counter(self._came)

    def round_begins(self, all_reduce: Callable[[torch.Tensor], Any]) -> list[JointOperation]:
        """Return the operations through which ranks learn who used which parameters."""
        self.without = []
        if not self.vary or (self.counted and self.by_known is not None):
            return []
        by = self.by = torch.zeros(len(self.slots), dtype=torch.int32, device="cpu")
        self.by_known = JointOperation(lambda: all_reduce(by))
        return [self.by_known]

    def leaves(self, slot: Slot) -> bool:
        """Record that the slot's gradient is sent. Return True if its `.grad` gets the average in any case."""
        if self.vary and slot not in self._with_part:
            self.without.append(slot)
            return False
        return True

    def round_ends(self) -> list[JointOperation]:
        """Start recording uses for the next round. Return the operations that are ready then."""
        if self.by is None or self.by_known is None or self.by_known.ready:
            return []
        for slot in self._with_part:
            self.by[slot.place] = 1
        if not self.counted:
            self._with_part.clear()
        return [self.by_known]
