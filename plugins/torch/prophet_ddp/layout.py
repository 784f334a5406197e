"""Layout of one module's gradients: their memory, how they are averaged, and the blocks of the decision in force.

Rule of this file: which blocks there are, alike on all ranks in each round. rounds.py knows when this may change, and
sends gradients; arena.py has the memory and the operations of blocks.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from prophet_ddp.control import UNORDERED, Control, Decision
from prophet_ddp.dividing import MOST_EXACT, Division, divide
from prophet_ddp.events import EventLog
from prophet_ddp.issuer import Issuer, JointOperation
from prophet_ddp.records import ModuleRecord
from prophet_scheduler.core.cut import Block, Cut, blocks_of
from prophet_scheduler.core.network import Probe
from prophet_scheduler.frontends.notices import warn_once
from prophet_scheduler.frontends.torch.clipping import NORM
from prophet_scheduler.frontends.torch.slot import Slot
from prophet_scheduler.policies.algorithms.sequence import LEAST_AT_ONCE, backward_order

if TYPE_CHECKING:
    from prophet_ddp.arena import DdpArena
    from prophet_ddp.assembly import OnProcessors
    from prophet_ddp.comm_hooks import Buckets, CommHook
    from prophet_ddp.nccl import OnGpu
    from prophet_ddp.phases import Phases


@dataclass(frozen=True)
class Channel:
    """Path of a module's blocks, and its log; `ranks` ranks share its process group, `members` by number in the job.
    `loss(error, iteration)` returns a line on why no average will arrive any more, from an error of the issuer's.
    `others(iteration)` tells the other ranks that this one waits in an iteration, and returns a phrase on those that do
    not. `alone` is the duration of a lone operation, if known.
    """

    issuer: Issuer
    control: Control
    log: EventLog
    ranks: int
    loss: Callable[[str, int], str]
    others: Callable[[int], str]
    members: Sequence[int] = ()
    alone: Probe | None = None


@dataclass(frozen=True)
class RoundTerms:
    """Terms of a module, fixed before its first round and alike on all ranks.

    `first_cut` makes the first cut for gradients of these bytes. `first_at_once`: operations in flight before anything
    is decided. With `fusion` small gradients travel together. `uses_vary`: parameters may have no gradient in a round
    (find_unused_parameters), and one that no rank used keeps its `.grad`. `counted`: the graph is static, and a
    parameter may get several gradients in a backward pass. `arranges`: from the second round on the arena has gradients
    in the order in which the first round generated them, the last one first; registration only hints at that order.
    `divides`: rounds may have two phases (phases.py). `in_place`: all gradients of a parameter use the same memory, as
    with gradient_as_bucket_view, so one that the program kept gets the values of the next. `adapts`: the cut may
    change. `may_leave`: torch's reducer is tried as well, and gets the module back if it is faster.
    """

    first_cut: Callable[[Sequence[int]], Cut]
    first_at_once: int = LEAST_AT_ONCE
    fusion: bool = True
    uses_vary: bool = False
    counted: bool = False
    arranges: bool = False
    divides: bool = False
    in_place: bool = False
    adapts: bool = False
    may_leave: bool = False


class ModuleLayout:
    """Layout of a module, which tells `record` of its decisions. There is no memory before the first round."""

    def __init__(
        self, channel: Channel, terms: RoundTerms, hardware: OnProcessors | OnGpu, record: ModuleRecord
    ) -> None:
        self._channel = channel
        self._terms = terms
        self._hardware = hardware
        self._record = record
        self.may_divide = terms.divides
        """True if rounds may have two phases. Alike on all ranks."""
        self._connected = False
        """True once ranks have the connections that two phases need."""
        self.phases: Phases | None = None
        """Phases of rounds under the decision in force; None if they have one phase."""
        self.norm_order = NORM
        """Order of the norms that the program asked for last."""
        self.arena: DdpArena | None = None
        """Memory, and blocks in force; None before the first round."""
        self.hook: CommHook | None = None
        """The torch hook that averages gradients; None if the program has registered none."""
        self.buckets: Buckets | None = None
        """Buckets that the hook averages; None if it does not depend on buckets."""
        self.decision: Decision | None = None
        """The decision in force; None before the first round."""
        self.first_came: list[Slot] | None = [] if terms.arranges and not terms.uses_vary else None
        """Slots in the first round's order of generation; None once slots are arranged by it, or if they never are."""
        self.arranged = False
        """True once slots are in the reverse order of generation."""

    @property
    def ranks(self) -> int:
        """Number of ranks that share the averages."""
        return self._channel.ranks

    @property
    def in_force(self) -> Decision | None:
        """The decision behind `cut`, for other threads to read in one step; None where `cut` is None."""
        return self.decision if self.first_came is None else None

    @property
    def cut(self) -> Cut | None:
        """Cut in force; None before the first round, and until slots are arranged. With two phases it is the cut before
        it is divided.
        """
        decision = self.in_force
        return decision.cut if decision is not None else None

    @property
    def way(self) -> str:
        """Way of averaging gradients (control.py), now or after the turn of torch's reducer."""
        return self.decision.way if self.decision is not None else UNORDERED

    @property
    def sizes(self) -> Sequence[int]:
        """Bytes of the gradients on the wire. Not known before the first round."""
        assert self.arena is not None
        return self.arena.sizes

    @property
    def kinds(self) -> Sequence[Hashable | None]:
        """Kinds of the gradients, as core.cut.blocks_of takes them. Not known before the first round."""
        assert self.arena is not None
        return self.arena.kinds

    def blocks_under(self, cut: Cut) -> list[Block]:
        """Return the blocks that this cut would make."""
        return blocks_of(self.sizes, self.kinds, cut)

    def division(self, cut: Cut) -> Division:
        """Return how two phases would divide this cut."""
        return divide(cut, self.sizes, self.ranks)

    @property
    def divisible(self) -> bool:
        """True if rounds of all gradients may have two phases."""
        if self.arena is None or not self.may_divide:
            return False
        return all(slot.param.dtype == torch.float32 for slot in self.arena.slots)

    def connect_phases(self, label: str, wait: Callable[[JointOperation], None]) -> bool:
        """Return True if rounds can have two phases, after connecting on first use. All ranks can, or none.

        `label` names the module. `wait(operation)` returns once the operation has ended.
        """
        if self.may_divide and not self._connected:
            count = self.ranks if self.ranks <= MOST_EXACT else 0
            # phases.py is imported late: few jobs need it. The import takes a file descriptor.
            first = functools.partial(importlib.import_module, "prophet_ddp.phases")
            why = self._channel.issuer.connect_apart(self._channel.control.rank, count, first, wait)
            self.may_divide = self._connected = not why
            if why:
                warn_once(f"{label} goes on without rounds in two phases: {why}")
        return self._connected

    def average_by(self, hook: CommHook, buckets: Buckets | None, wait: Callable[[JointOperation], None]) -> str:
        """Average gradients by this hook from the first round on; all ranks call this. `buckets` are for a hook that
        depends on them. Return why no rank can, or "".

        `wait(operation)` returns once the operation has ended.
        """
        assert self.arena is None, "gradients have already been sent in another type"
        if buckets is not None and hook.by_bucket:
            if self.first_came is None:
                return "gradients may be unused, or the policy has blocks of its own"
            channel = self._channel
            why = channel.issuer.connect_apart(channel.control.rank, LEAST_AT_ONCE, lambda: None, wait)
            if why:
                return why
            self.buckets, self.may_divide = buckets, False
        self.hook = hook
        return ""

    def fill(self, registered: Sequence[Slot], slots: Sequence[Slot]) -> None:
        """Make an arena of these `slots`, with the module's first cut and sequence. `registered` are the same slots in
        the order of registration.
        """
        channel, hook = self._channel, self.hook
        how = functools.cache(self._hardware.streams), channel.issuer, channel.log
        if self.buckets is not None:
            self.arena = buckets = self.buckets.arena(registered, slots, *how)
            return self.take_up(self.undecided(buckets.whole))
        half = hook.half if hook is not None else None
        self._record.half = half is not None
        self.arena = arena = self._hardware.arena(slots, self._terms.fusion, *how, half=half)
        if hook is None:
            arena.scale = 1.0 / channel.ranks
        else:
            arena.divisor = channel.ranks
        self.take_up(self.undecided(self._terms.first_cut(arena.sizes)))

    def arrange(self, registered: Sequence[Slot], slots: Sequence[Slot]) -> None:
        """Make another arena, as `fill` does, in which `slots` are in the reverse order of generation."""
        self.free()  # before the next one is allocated
        if self.buckets is not None:
            self.buckets.rebuilt = True
        for slot in slots:
            slot.blocks = ()
            del slot.view
        self.fill(registered, slots)
        self.arranged, self.first_came = True, None  # The agent's thread may read the decision from here on.

    def undecided(self, cut: Cut) -> Decision:
        """Return the default decision for blocks of this cut."""
        return Decision(
            cut, backward_order(len(self.blocks_under(cut))), at_once=self._terms.first_at_once, unordered=True
        )

    def take_up(self, decision: Decision) -> None:
        """Put a decision in force, while nothing is in flight."""
        assert self.arena is not None
        division = self.division(decision.cut) if decision.gathers else None
        self.arena.recut(decision.cut if division is None else division.cut)
        self._record.took_up(decision.cut)
        count = len(self.arena.blocks)
        if len(decision.order) != count:
            raise RuntimeError(f"ranks agreed on a sequence of {len(decision.order)} blocks, but there are {count}")
        self.decision = decision
        issuer, self.phases = self._channel.issuer, None
        if division is not None:
            from prophet_ddp.phases import Phases

            pieces, ranks = self.blocks_under(division.cut), (self._channel.control.rank, self.ranks)
            arena = self.arena
            self.phases = Phases(issuer, arena.slots, arena.blocks, pieces, division, decision, *ranks)
        issuer.at_once = decision.at_once if self.buckets is None else len(issuer.groups.apart)

    def operations(self) -> list[JointOperation]:
        """Return the operations of a new round, in order."""
        assert self.arena is not None and self.decision is not None
        if self.phases is not None:
            return self.arena.operations_in(self.phases, self.norm_order)
        return self.arena.operations(self.decision.collectives)

    def free(self) -> None:
        """Free the memory, without a garbage collection: operations would keep it until then."""
        if self.arena is not None:
            self.arena.operations(())
        self.arena = self.phases = None
