"""The collectives of a sharded module, by FSDP2's public hooks.

Rule of this file: what FSDP2 calls, and who waits for what. wire.py moves the data, and order.py knows which module
comes next.

A gathering is waited for where FSDP2 copies it out. A reduction is not waited for: backward goes on while gradients
travel. FSDP2 makes `.grad` of its result at once, and whoever sees that is to find the average there. So the end of the
backward pass waits for all of its reductions. Where FSDP2 adds the result to an earlier gradient or makes it another
type, it gets zeros, and the result is added at the end of the backward pass.
"""

from __future__ import annotations

import enum
import functools
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllGather, DefaultReduceScatter

from prophet_fsdp.order import in_backward, order_of
from prophet_fsdp.says import Iterations
from prophet_fsdp.wire import ShardTransfer, ShardWire

GATHERS, REDUCES = range(2)
"""Urgency: the computation that comes next waits for a gathering."""
HOOKS = "_post_accumulate_grad_hooks"
"""Attribute of a tensor whose gradient the program wants to see at once."""
MOST_INPUTS = 4
"""Most modules whose gradients wait in memory for the wire. FSDP2 alone keeps one."""


class Fills(enum.Enum):
    """Memory that a reduction fills, and when."""

    GRADIENTS = enum.auto()
    """The memory of which FSDP2 makes gradients, by the end of the backward pass."""
    APART = enum.auto()
    """Memory of its own, since FSDP2 adds its result to a gradient or makes it another type. It is added at the end of
    the backward pass.
    """
    NOW = enum.auto()
    """Memory that FSDP2 or the program reads at once."""


class Members:
    """Ranks of the wire, and torch's groups of the same ranks."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._ranks = dist.get_process_group_ranks(group)
        self._alike: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()

    def are_of(self, group: dist.ProcessGroup) -> bool:
        """Return True if the group has the wire's ranks, in the same order."""
        if group not in self._alike:
            self._alike[group] = dist.get_process_group_ranks(group) == self._ranks
        return self._alike[group]


class SharedRounds:
    """Parts that all modules sharded over one group have in common."""

    def __init__(self, wire: ShardWire, group: dist.ProcessGroup, iterations: Iterations | None = None) -> None:
        self.wire = wire
        self.iterations = iterations
        """None where this rank says nothing of them."""
        self.members = Members(group)
        self.inputs: deque[ShardTransfer] = deque()
        """Reductions whose gradients may still be in memory."""

    def moves(self, data: torch.Tensor) -> None:
        """Note that this is on its way."""
        if self.iterations is not None:
            self.iterations.moves(data.nbytes, in_backward())


class GatherEnd(dist.Work):
    """torch's Work of a gathering."""

    def __init__(self, wire: ShardWire, transfer: ShardTransfer, came: Callable[[], None]) -> None:
        super().__init__()
        self._wire, self._transfer, self._came = wire, transfer, came

    def wait(self, timeout: Any = None) -> bool:
        """Return True when all parts are there. Raises the wire's error."""
        self._came()
        self._wire.wait(self._transfer)
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
        if not self._shared.members.are_of(group):
            return super().__call__(output_tensor, input_tensor, group, async_op)
        own = output_tensor.view(group.size(), -1)[group.rank()]
        if own.data_ptr() != input_tensor.data_ptr():
            own.copy_(input_tensor)
        self._shared.moves(output_tensor)
        transfer = self._shared.wire.gather(output_tensor, GATHERS)
        module: Any = self._module()
        order = order_of(module)
        order.gathers(module)
        return GatherEnd(self._shared.wire, transfer, lambda: order.came(module))


class Reduce(DefaultReduceScatter):
    """Reduce-scatter of a module's gradients. `group` is FSDP2's of its parameters."""

    def __init__(self, shared: SharedRounds, module: torch.nn.Module, group: Any) -> None:
        self._shared = shared
        self._module = weakref.ref(module)
        self._group = weakref.ref(group)
        self._last: ShardTransfer | None = None

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> Any:
        if not self._shared.members.are_of(group) or op not in (dist.ReduceOp.AVG, dist.ReduceOp.SUM):
            return super().__call__(output_tensor, input_tensor, group, op, async_op)
        self._shared.moves(input_tensor)
        wire, inputs = self._shared.wire, self._shared.inputs
        while len(inputs) >= MOST_INPUTS:
            wire.wait(inputs.popleft(), left=True)
        fills = self._fills(output_tensor) if op == dist.ReduceOp.AVG and in_backward() else Fills.NOW
        if fills is Fills.APART and self._last is not None:
            wire.wait(self._last)  # FSDP2 is about to add to what that one fills.
        result = torch.empty_like(output_tensor) if fills is Fills.APART else output_tensor
        self._last = transfer = wire.reduce(result, input_tensor, op == dist.ReduceOp.AVG, REDUCES)
        inputs.append(transfer)
        if fills is Fills.NOW:
            wire.wait(transfer)
        elif fills is Fills.APART:
            output_tensor.fill_(-0.0)  # To add it changes no bit of any number.
        if in_backward():
            engine: Any = torch.autograd.Variable._execution_engine
            engine.queue_callback(functools.partial(self._backward_ends, transfer, result, fills))
        return None

    def _backward_ends(self, transfer: ShardTransfer, result: torch.Tensor, fills: Fills) -> None:
        order_of(self._module()).settle()
        self._shared.wire.wait(transfer)
        if fills is Fills.APART:
            self._add(result)
        if self._shared.iterations is not None:
            self._shared.iterations.backward_ends(time.monotonic())

    def _fills(self, output: torch.Tensor) -> Fills:
        group: Any = self._group()
        sharded = [param.sharded_param for param in self._params()]
        if group._all_reduce_hook is not None or any(getattr(each, HOOKS, None) for each in sharded):
            return Fills.NOW
        if group._orig_dtype == output.dtype and all(param.grad is None for param in sharded):
            return Fills.GRADIENTS
        sizes = (param.padded_sharded_param_size.numel() for param in self._params())
        return Fills.APART if sum(sizes) == output.numel() else Fills.NOW

    def _params(self) -> list[Any]:
        """Return FSDP2's parameters that may have gradients."""
        group: Any = self._group()
        return [param for param in group.fsdp_params if param.sharded_param.requires_grad]

    @torch.no_grad()
    def _add(self, result: torch.Tensor) -> None:
        """Add a result to the gradients of all parameters, as FSDP2 does."""
        group: Any = self._group()
        result = result.to(group._orig_dtype)
        start = 0
        for param in self._params():
            part = result.as_strided(param.sharded_size, param.contiguous_sharded_stride, start)
            param.sharded_param.grad.to_local().add_(part)
            start += param.padded_sharded_param_size.numel()
