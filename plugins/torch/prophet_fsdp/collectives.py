"""The collectives of a sharded module, through FSDP2's public hooks.

Rule of this file: what FSDP2 calls, and who waits for what. wire.py moves the data, and order.py knows which module
comes next.

FSDP2 waits for an all-gather where it copies the parameters out. A reduction is late: FSDP2 makes `.grad` at once, and
whoever reads it waits (rounds.py). If something reads it within backward, the reduction is waited for at once.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp._fully_shard import _fsdp_collectives
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllGather, DefaultReduceScatter

from prophet_fsdp.order import order_of
from prophet_fsdp.rounds import Begun, rounds_of
from prophet_fsdp.turns import OwnTurns
from prophet_fsdp.wire import Reduction, ShardTransfer, ShardWire, Stage, between_replicas
from prophet_scheduler.frontends import lines
from prophet_scheduler.frontends.ending import at_end
from prophet_scheduler.frontends.torch.references import in_backward
from prophet_scheduler.watch.meter import Periods

GATHERS, REDUCES = range(2)
"""Urgency. The next computation waits for an all-gather. Of reductions, those of the modules that come first in forward
are the most urgent.
"""
MOST_INPUTS = 4
"""Maximum number of modules whose gradients wait in memory for the wire. FSDP2 alone keeps one."""


class Iterations:
    """Iterations of a sharding group of `ranks` ranks under this policy: each is a forward pass and the backward pass
    that follows. A line after the first one tells what is scheduled, and one at the end how long they took.
    """

    def __init__(self, ranks: int, policy: str) -> None:
        self._ranks = ranks
        self._policy = policy
        self._periods = Periods()
        self._forward = False
        self._moved_bytes = self._count = 0
        self.turns: OwnTurns | None = None
        """Turns of FSDP2's own collectives, of the group's first model."""

    def moves(self, size_bytes: int) -> None:
        """Record a collective of this size, in a forward or a backward pass."""
        self._forward |= not in_backward()
        if not self._count:
            self._moved_bytes += size_bytes

    def backward_ends(self, now: float) -> None:
        """Record the end of a model's part of a backward pass; only the first end after a forward pass counts."""
        if not self._forward:
            return
        self._forward = False
        self._count += 1
        self._periods.add([now])
        if self._count == 1:
            lines.begins("FSDP2 over gloo", f"{self._ranks} ranks", self._moved_bytes, self._policy)
            at_end(self._ends)

    def _ends(self) -> None:
        assert self.turns is not None
        lines.ends(self._count, self._periods.spread(), self.turns.words)


class SharedRounds:
    """Parts shared by all modules that are sharded over one group. `tries_own`: FSDP2's own collectives get turns."""

    def __init__(self, wire: ShardWire, group: dist.ProcessGroup, tries_own: bool) -> None:
        self.wire = wire
        self.tries_own = tries_own
        self.iterations: Iterations | None = None
        """Iterations to report; None if this rank reports none."""
        self._ranks = dist.get_process_group_ranks(group)
        self._rank = group.rank()
        self._served: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()
        self.inputs: list[tuple[int, ShardTransfer]] = []
        """Reductions whose gradients may still be in memory, with their urgency."""

    def serves(self, group: dist.ProcessGroup) -> bool:
        """Return True if a group of torch's has the wire's ranks, in the same order."""
        if group not in self._served:
            self._served[group] = dist.get_process_group_ranks(group) == self._ranks
        return self._served[group]

    def exchange(self, own: torch.Tensor) -> torch.Tensor:
        """Send `own` to all ranks of the group, and return every rank's, stacked. Raises the wire's error."""
        every = own.new_zeros(len(self._ranks), *own.shape)
        every[self._rank] = own
        self.wire.wait(self.wire.gather(every, GATHERS, 0))
        return every

    def moves(self, size_bytes: int) -> None:
        """Record that this many bytes are on their way."""
        if self.iterations is not None:
            self.iterations.moves(size_bytes)

    def make_room(self) -> None:
        """Wait until few enough gradients are in memory, for the most urgent reduction first: it arrives first."""
        while len(self.inputs) >= MOST_INPUTS:
            next_ = min(range(len(self.inputs)), key=lambda place: self.inputs[place][0])
            self.wire.wait(self.inputs.pop(next_)[1])


class GatherEnd(dist.Work):
    """torch's Work of an all-gather."""

    def __init__(self, transfer: ShardTransfer, came: Callable[[], None]) -> None:
        super().__init__()
        self._transfer, self._came = transfer, came

    def wait(self, timeout: Any = None) -> bool:
        """Return True once all parts have arrived. Raises the wire's error."""
        self._came()
        self._transfer.wire.wait(self._transfer)
        return True


class Gather(DefaultAllGather):
    """All-gather of a module's parameters."""

    def __init__(self, shared: SharedRounds, module: torch.nn.Module) -> None:
        self._shared = shared
        self._module = weakref.ref(module)

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        async_op: bool = False,
    ) -> Any:
        if not self._shared.serves(group):
            return super().__call__(output_tensor, input_tensor, group, async_op)
        self._shared.moves(output_tensor.nbytes)
        module: Any = self._module()
        if _has_own_turn(module):
            return super().__call__(output_tensor, input_tensor, group, async_op)
        own = output_tensor.view(group.size(), -1)[group.rank()]
        if own.data_ptr() != input_tensor.data_ptr():
            own.copy_(input_tensor)
        order = order_of(module)
        transfer = self._shared.wire.gather(output_tensor, GATHERS, order.place(module))
        order.gathers(module)
        return GatherEnd(transfer, lambda: order.came(module))


class Reduce(DefaultReduceScatter):
    """Reduction of a module's gradients: the reduce-scatter of parts, and the all-reduce between replicas. `group` is
    FSDP2's for the module's parameters. `parts` or `replicas` is None if there is only one.
    """

    def __init__(
        self, parts: SharedRounds | None, replicas: SharedRounds | None, module: torch.nn.Module, group: Any
    ) -> None:
        self._parts, self._replicas = parts, replicas
        self.shared = [shared for shared in (parts, replicas) if shared is not None]
        self._module = weakref.ref(module)
        self._group = weakref.ref(group)
        self._reduced: tuple[Begun, Stage, torch.Tensor] | None = None
        """Reduce-scatter before an all-reduce: what awaits it, the stage that starts it, and its result."""

    def allocate(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        result = super().allocate(*args, **kwargs)
        _here.allocated = weakref.ref(result), self  # FSDP2 may pass it to an all-reduce.
        return result

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> Any:
        self._reduced = None
        parts = self._parts
        if parts is None or not parts.serves(group) or op not in (dist.ReduceOp.AVG, dist.ReduceOp.SUM):
            return super().__call__(output_tensor, input_tensor, group, op, async_op)
        parts.moves(input_tensor.nbytes)
        average = op == dist.ReduceOp.AVG
        begun = self._begin(output_tensor) if in_backward() else None
        if _has_own_turn(self._module()):
            return super().__call__(output_tensor, input_tensor, group, op, async_op)
        late = begun if average and not self._adds_up() else None
        result = torch.empty_like(output_tensor) if late is not None else output_tensor

        transfer = parts.wire.reserve(result)

        def begin() -> None:
            parts.make_room()
            parts.wire.reduce(result, input_tensor, average, self._urgency, self._place, transfer)
            parts.inputs.append((self._urgency, transfer))

        stage = Stage(begin, transfer)
        if late is None:
            Reduction([stage]).wait()
            return None
        output_tensor.fill_(-0.0)  # Adding that changes no bit of any number.
        if self._replicas is not None:
            self._reduced = late, stage, result
        else:
            late.left([stage], result)
        return None

    def all_reduce(self, tensor: torch.Tensor, op: Any, group: Any) -> bool:
        """Do FSDP2's all-reduce between replicas. Return False if torch has to; `tensor` then has its whole input."""
        reduced, self._reduced = self._reduced, None
        replicas = self._replicas
        if replicas is None or not replicas.serves(group) or op not in (dist.ReduceOp.AVG, dist.ReduceOp.SUM):
            if reduced is not None:
                _, stage, result = reduced
                Reduction([stage]).wait()
                tensor.copy_(result)
            return False
        (self._parts or replicas).moves(tensor.nbytes)
        average = op == dist.ReduceOp.AVG
        begun: Begun | None
        if reduced is not None:
            begun, *before, source = reduced
        else:
            begun, before = self._begin(tensor) if in_backward() else None, []
            if _has_own_turn(self._module()):
                return False
            source = tensor.clone()
        result, stages = between_replicas(
            replicas.wire, group.rank(), group.size(), source, average, self._urgency, self._place
        )
        if begun is not None and average:
            tensor.fill_(-0.0)
            begun.left([*before, *stages], result)
            return True
        Reduction([*before, *stages]).wait()
        tensor.copy_(result)
        return True

    @property
    def _place(self) -> int:
        module: Any = self._module()
        return order_of(module).place(module)

    @property
    def _urgency(self) -> int:
        return REDUCES + self._place

    def _adds_up(self) -> bool:
        """Return True if FSDP2 accumulates results of several reductions before replicas exchange them."""
        group: Any = self._group()
        return self._replicas is not None and not (group.all_reduce_grads and group._partial_reduce_output is None)

    def _begin(self, output: torch.Tensor) -> Begun | None:
        """Return what awaits the reduction; None if its result is needed at once."""
        group: Any = self._group()
        rounds = rounds_of(self._module(), begin=True)
        assert rounds is not None
        rounds.next_comes(group.fsdp_params)
        for shared in (self._parts, self._replicas):
            if shared is not None and shared.iterations is not None:
                rounds.says.add(shared.iterations)
                shared.iterations.turns = shared.iterations.turns or rounds.turns
        if group._all_reduce_hook is not None or rounds.own_turn():
            return None
        return rounds.begin(group.fsdp_params, output.numel())


def _has_own_turn(module: Any) -> bool:
    """Return True if FSDP2's own collectives have their turn with the module's model, or keep it for good."""
    rounds = rounds_of(module, begin=False)
    return rounds is not None and rounds.own_turn()


class _Here(threading.local):
    """State of this thread: the last memory that FSDP2 has had for a reduction."""

    allocated: tuple[weakref.ref[torch.Tensor], Reduce] | None = None


_here = _Here()


class _Distributed:
    """torch.distributed as FSDP2's collectives see it, with our all-reduce, for which FSDP2 has no hook."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def all_reduce(
        self, tensor: torch.Tensor, op: Any = dist.ReduceOp.SUM, group: Any = None, async_op: bool = False
    ) -> Any:
        allocated, _here.allocated = _here.allocated, None
        if allocated is not None and allocated[0]() is tensor and not async_op:
            _, reduce = allocated
            if reduce.all_reduce(tensor, op, group):
                return None
        return self._inner.all_reduce(tensor, op=op, group=group, async_op=async_op)


def stand_behind_all_reduce() -> None:
    """From now on have FSDP2 offer each all-reduce to Prophet first."""
    inner: Any = vars(_fsdp_collectives)["dist"]
    if not isinstance(inner, _Distributed):
        vars(_fsdp_collectives)["dist"] = _Distributed(inner)
