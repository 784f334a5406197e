"""The arena of a DistributedDataParallel's gradients: its blocks travel as all-reduces, in one phase or two. Sparse
gradients travel beside them.

Rule of this file: which blocks an operation carries, and when it may start. prophet_scheduler/frontends/torch/arena.py
defines an arena, issuer.py orders operations, and device_arena.py has the arena of a GPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from prophet_ddp.events import EventLog
from prophet_ddp.issuer import Issuer, JointOperation
from prophet_scheduler.frontends.torch.arena import Arena, ArenaBlock
from prophet_scheduler.frontends.torch.slot import Slot
from prophet_scheduler.frontends.torch.streams import Streams

if TYPE_CHECKING:
    from prophet_ddp.phases import Phases


class DdpArena(Arena):
    """Arena whose blocks travel as all-reduces, or as the two halves of one (phases.py)."""

    def __init__(
        self,
        slots: Sequence[Slot],
        fusion: bool,
        streams: Callable[[Any], Streams],
        issuer: Issuer,
        log: EventLog,
        half: torch.dtype | None = None,
        bundles: Sequence[Sequence[int]] = (),
    ) -> None:
        super().__init__(slots, fusion, streams, half=half, bundles=bundles)
        self._issuer = issuer
        self._log = log
        self._operations: dict[ArenaBlock, JointOperation] = {}
        self._last: Mapping[ArenaBlock, JointOperation] = self._operations
        """By block, the operation whose end is the block's arrival; in two phases it is not the one that sends it."""
        self._incomplete: dict[JointOperation, int] = {}
        """Number of incomplete blocks of each of the round's operations."""

    def operations(self, collectives: Iterable[Sequence[int]]) -> list[JointOperation]:
        """Return the round's operations, in order. `collectives` has the places of each one's blocks."""
        self._operations, self._incomplete = {}, {}
        self._last = self._operations
        for places in collectives:
            blocks = [self.blocks[place] for place in places]
            operation = self._operation(blocks)
            self._operations.update(dict.fromkeys(blocks, operation))
            self._incomplete[operation] = len(blocks)
        return list(self._incomplete)

    def operations_in(self, phases: Phases, norm_order: float) -> list[JointOperation]:
        """Return the operations of a round in two phases, with gradient norms of this order."""
        operations = phases.operations(norm_order)
        self._operations, self._last = phases.reduces, phases.gatherings
        self._incomplete = dict.fromkeys(self._operations.values(), 1)
        return operations

    def _operation(self, blocks: Sequence[ArenaBlock]) -> JointOperation:
        parts = [block.data for block in blocks]
        copies: list[torch.Tensor] = []

        def start() -> Any:
            if len(parts) > 1:  # They are not adjacent: they are sent as one copy, and copied back afterwards.
                copies.append(torch.cat(parts))
            return self._issuer.groups.all_reduce(*(copies or parts))

        def then() -> None:
            with torch.no_grad():
                for copy in copies:
                    for part, summed in zip(parts, copy.split([part.numel() for part in parts]), strict=True):
                        part.copy_(summed)

        return self._joint(start, blocks[0].id, sum(part.nbytes for part in parts), then)

    def _joint(self, start: Callable[[], Any], id: int, size_bytes: int, then: Callable[[], None]) -> JointOperation:
        return JointOperation(start, id, size_bytes, then)

    def next_round(self) -> None:
        self._generated()
        super().next_round()

    def _generated(self) -> None:
        """Record that all gradients of the round are there."""
        self._log.round_ended(time.monotonic())

    def under_way(self) -> list[JointOperation]:
        """Return the last round's operations that may still use its blocks after all averages have arrived."""
        return []

    def landed(self, slot: Slot) -> bool:
        """Return True if the average has arrived and no stream has to wait for it."""
        return self.arrived(slot)

    def _send(self, block: ArenaBlock) -> JointOperation:
        operation = self._operations[block]
        self._log.added(block.id, block.data.nbytes, time.monotonic())
        self._incomplete[operation] -= 1
        if not self._incomplete[operation]:
            self._issuer.ready(operation)
        return self._last[block]

    def _back(self, block: ArenaBlock) -> bool:
        return bool(block.flight.done)


@dataclass
class SparseGradients:
    """Sparse gradients of these `params`, in an order that is alike on all ranks of the `group`, the module's own.

    As with torch's reducer, backward waits for their averages. An all-reduce of sparse gradients first exchanges which
    elements each rank has, so they do not travel in blocks. Dense gradients travel meanwhile and later.
    """

    params: Sequence[torch.Tensor]
    group: dist.ProcessGroup

    def average(self) -> None:
        """Average each gradient over all ranks, in place. All ranks call it once backward has made all gradients."""
        works = []
        for param in self.params:
            if param.grad is None:
                param.grad = torch.zeros_like(param, layout=torch.sparse_coo)
            with torch.no_grad():
                param.grad.div_(self.group.size())
            works.append(dist.all_reduce(param.grad, group=self.group, async_op=True))
        for work in works:
            work.wait()
