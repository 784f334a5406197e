"""Progress of a module's rounds: times of iterations, which parameters have a part, and how many gradients each gets.

Rule of this file: counting, and read-only looks at autograd's graph. rounds.py decides what happens, and when.

Usually each parameter gets one gradient in a backward pass. With find_unused_parameters some get none, as forward's
outputs show. With a static graph the first backward pass shows each parameter's number of gradients.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import get_gradient_edge

from prophet_ddp.issuer import JointOperation
from prophet_scheduler.core.choice import IterationEnd
from prophet_scheduler.core.cut import Cut
from prophet_scheduler.frontends.torch.slot import Slot

WARM_UP = 2
"""Number of a module's first rounds whose times do not count."""
KEPT_ITERATIONS = 1024
"""Number of newest iterations whose times are kept. On a busy machine the agent may fetch none for a while, and an arm
whose times are lost is measured again."""


class ModulePace:
    """Progress of one module. An iteration lasts from one round's start to the next one's. Times are in seconds."""

    def __init__(self) -> None:
        self.ended = 0
        """Number of finished rounds."""
        self.open = False
        self.closed = False
        """True once torch's reducer would have waited for the last round's averages, until the next round starts."""
        self.staged = 0
        """Number of gradients of the open round that have been staged."""
        self.on_round: Callable[[], None] | None = None
        """Function to call when a round starts or ends, while the deciding rank looks for something better; or None."""
        self._iterations: deque[IterationEnd] = deque(maxlen=KEPT_ITERATIONS)
        self._began_s: float | None = None
        self._seen = 0

    @property
    def newest(self) -> int:
        """Number of the newest round, counted from 1."""
        return self.ended + self.open

    def new_iteration(self) -> bool:
        """Return True if a round has ended since the last call."""
        before, self._seen = self._seen, self.ended
        return self._seen != before

    def began(self, now: float) -> float | None:
        """Record that a round starts. Return the duration of the iteration before it; None for the first."""
        before_s, self._began_s = self._began_s, now
        self.closed = False
        return now - before_s if before_s is not None else None

    def end(self, now: float) -> float:
        """End the open round. Return its duration."""
        assert self._began_s is not None
        self.ended += 1
        self.open, self.staged = False, 0
        return now - self._began_s

    def pause(self) -> None:
        """Leave out the iteration from the last round's start to the next one's."""
        self._began_s, self._seen = None, self.ended

    def iterated(self, cut: Cut | None, way: str, took_s: float) -> None:
        """Record the duration of an iteration under this cut; None before the first one."""
        if cut is not None and self.ended > WARM_UP:
            self._iterations.append(IterationEnd(cut, way, took_s))
        self.tell()

    def tell(self) -> None:
        """Call `on_round`."""
        on_round = self.on_round  # Read once: another thread may clear it.
        if on_round is not None:
            on_round()

    def take_iterations(self) -> list[IterationEnd]:
        """Return the iterations that have ended since the last call. Thread-safe."""
        return [self._iterations.popleft() for _ in range(len(self._iterations))]


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
            self._came.update(unused)  # A gradient for one of these is one too many.
        return (slot, *unused) if last else unused, over or slot in unused

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


def not_reached(outputs: Sequence[torch.Tensor], slots: Iterable[Slot]) -> list[Slot]:
    """Return the slots that get no gradient from these outputs, since their parameters are unused or cut off."""
    seen: set[Any] = set()
    nodes = [output.grad_fn for output in outputs if output.grad_fn is not None]
    while nodes:
        node = nodes.pop()
        if node in seen:
            continue
        seen.add(node)
        nodes += [after for after, _ in node.next_functions if after is not None]
    return [slot for slot in slots if slot.accumulation not in seen]


def is_cut_off(slot: Slot, module: nn.Module | None) -> bool:
    """Return True if gradients of `module` no longer reach this slot. Its parameter is no longer there, or torch has
    made another node that accumulates into `.grad`, as after a move to another type or device.
    """
    if slot.param.requires_grad and get_gradient_edge(slot.param).node is not slot.accumulation:
        return True
    if module is None:
        return False
    holder, _, name = slot.name.rpartition(".")
    try:
        if module.get_submodule(holder)._parameters.get(name) is slot.param:
            return False
    except AttributeError:  # The module that held it is gone.
        pass
    except RuntimeError:  # A scripted module does not tell, but keeps its parameters.
        return False
    # It may have another name now, as after pruning.
    return all(param is not slot.param for part in module.modules() for param in part._parameters.values())
