"""The collectives of a sharded module, by FSDP2's public hooks.

Rule of this file: what FSDP2 calls, and who waits for what. wire.py moves the data, and order.py knows which module
comes next.

A gathering is waited for where FSDP2 copies it out. A reduction is not waited for: backward goes on while gradients
travel. FSDP2 makes `.grad` of its result at once, and whoever sees that is to find the average there. So the end of the
backward pass waits for all of its reductions, and a reduction whose result is read at once is waited for at once.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllGather, DefaultReduceScatter

from prophet_fsdp.order import order_of
from prophet_fsdp.wire import Transfer, Wire

GATHERS, REDUCES = range(2)
"""Urgency: the computation that comes next waits for a gathering."""
MOST_INPUTS = 4
"""Most modules whose gradients wait in memory for the wire. FSDP2 alone keeps one."""


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


class Shared:
    """What all modules that are sharded over one group share."""

    def __init__(self, wire: Wire, group: dist.ProcessGroup) -> None:
        self.wire = wire
        self.members = Members(group)
        self.inputs: deque[Transfer] = deque()
        """Reductions whose gradients may still be in memory."""


class Arrival(dist.Work):
    """torch's Work of a gathering."""

    def __init__(self, wire: Wire, transfer: Transfer, came: Callable[[], None]) -> None:
        super().__init__()
        self._wire, self._transfer, self._came = wire, transfer, came

    def wait(self, timeout: Any = None) -> bool:
        """Return True when all parts are there. Raises the wire's error."""
        self._came()
        self._wire.wait(self._transfer)
        return True


class Gather(DefaultAllGather):
    """All-gather of a module's parameters."""

    def __init__(self, shared: Shared, module: torch.nn.Module) -> None:
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
        transfer = self._shared.wire.gather(output_tensor, GATHERS)
        module: Any = self._module()
        order = order_of(module)
        order.gathers(module)
        return Arrival(self._shared.wire, transfer, lambda: order.came(module))


class Reduce(DefaultReduceScatter):
    """Reduce-scatter of a module's gradients. `group` is FSDP2's of its parameters."""

    def __init__(self, shared: Shared, module: torch.nn.Module, group: Any) -> None:
        self._shared = shared
        self._module = weakref.ref(module)
        self._group = weakref.ref(group)

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
        wire, inputs = self._shared.wire, self._shared.inputs
        while len(inputs) >= MOST_INPUTS:
            wire.wait(inputs.popleft(), left=True)
        transfer = wire.reduce(output_tensor, input_tensor, op == dist.ReduceOp.AVG, REDUCES)
        inputs.append(transfer)
        order = order_of(self._module())

        def backward_ends() -> None:
            order.settle()
            wire.wait(transfer)

        try:
            engine: Any = torch.autograd.Variable._execution_engine
            engine.queue_callback(backward_ends)
            waits = op != dist.ReduceOp.AVG or self._is_read_at_once(output_tensor.dtype)
        except RuntimeError:  # no backward pass
            waits = True
        if waits:
            wire.wait(transfer)
        return None

    def _is_read_at_once(self, dtype: torch.dtype) -> bool:
        """Return True where FSDP2 reads the result before the backward pass ends: it adds it to a gradient, makes it
        another type, or shows it to the program.
        """
        group: Any = self._group()
        sharded = [param.sharded_param for param in group.fsdp_params]
        return (
            group._orig_dtype != dtype
            or group._all_reduce_hook is not None
            or any(param.grad is not None or getattr(param, "_post_accumulate_grad_hooks", None) for param in sharded)
        )
