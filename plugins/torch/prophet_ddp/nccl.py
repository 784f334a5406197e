"""DistributedDataParallel on GPUs: when Prophet replaces its reducer there, and with which parts.

Rule of this file: that decision, and the parts of one module (process group, threads, arena). It stays off unless
PROPHET_DDP_NCCL turns it on, since it has been run on one GPU that two ranks shared (docs/results/gpu.md), and never on
several. The reasons: docs/decisions/nccl.md.

One process group of ours has both backends, and torch picks one by the tensor's device. Gradients go over NCCL, in one
communicator. What the ranks agree on (pages, decisions, which parameters were used) goes over gloo, in tensors on the
CPU that the host can read without the device.
"""

from __future__ import annotations

import datetime
import functools
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import Store

from prophet_ddp.wide_gloo import probe
from prophet_scheduler.core.settings import DDP_NCCL, Settings
from prophet_scheduler.policies import get_definition

if TYPE_CHECKING:
    from prophet_ddp.arena import DdpArena
    from prophet_ddp.device_arena import DeviceStreams, EventWatcher

BACKEND = "cpu:gloo,cuda:nccl"
SERVED = ("nccl", "cuda:nccl", BACKEND)
END_LIMIT_S = 2.0
"""Maximum wait for each thread at the end of the process, in seconds."""
NOTICE = (
    "Prophet schedules this module's gradients over NCCL, which has been run on one shared GPU only: compare the "
    "weights of a short job with those of one without PROPHET_SCHEDULER before you rely on it"
)

logger = logging.getLogger("prophet_scheduler")

_TEARS_DOWN = ("1", "3")
"""Values of TORCH_NCCL_ASYNC_ERROR_HANDLING with which an error ends the process. With others the process would go on
after an operation that has failed halfway."""


def why_not(
    devices: set[torch.device], backend: str, whole: bool, bound: bool, told: Settings, environ: Mapping[str, str]
) -> str | None:
    """Return why torch's reducer must stay for parameters on these devices, not all of them CPUs; None if it need not.

    `backend` is that of the module's group, which is the default group if `whole`. `bound`: the default group has been
    bound to its device since its start (init_process_group's device_id).
    """
    kinds = {device.type for device in devices}
    if kinds != {"cuda"}:
        return f"parameters are on {' and '.join(sorted(kinds))}, and only gloo on processors has been tried"
    if not told.nccl:
        return f"parameters are on GPUs, and Prophet has been tried on a single one only; {DDP_NCCL}=1 turns it on"
    if len(devices) > 1:
        return f"parameters are on {len(devices)} GPUs, and only one for each process is served"
    if backend not in SERVED:
        return f"its process group's backend is {backend}, not nccl"
    if bound and not whole:
        # torch would split the new group off with all ranks of the default one, but only this module's ranks call it.
        return "its process group is a part of one that init_process_group bound to a device"
    definition = get_definition(told.policy)
    if definition.traced or definition.of_graph is not None:
        return f"{told.policy} plans from a trace of forward passes, which is taken on processors alone"
    return _torch_keeps(environ)


def _torch_keeps(environ: Mapping[str, str]) -> str | None:
    """Return why torch's settings for NCCL rule the stand-in out; None if they do not."""
    for prefix in ("TORCH_", ""):
        blocking, handling = f"{prefix}NCCL_BLOCKING_WAIT", f"{prefix}NCCL_ASYNC_ERROR_HANDLING"
        if environ.get(blocking, "0") not in ("", "0"):
            return f"{blocking} is set, so each wait for an operation would block"
        if environ.get(handling, _TEARS_DOWN[0]) not in _TEARS_DOWN:
            return f"{handling} is {environ[handling]}, so a process would go on after an operation that has failed"
    return None


class OnGpu:
    """Hardware of a module whose parameters are on `device`, as assembly.OnProcessors is of others."""

    tried = False

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._made: DeviceStreams | None = None
        self._watchers: list[EventWatcher] = []

    def new_group(self, group: dist.ProcessGroup, _store: Store, timeout: datetime.timedelta) -> dist.ProcessGroup:
        """Make a group with both backends. Its ranks meet as for any group of torch.distributed's."""
        ranks = dist.get_process_group_ranks(group)
        # torch names a group of some ranks by the number of groups that each of them is in, which must be alike
        # (wide_gloo.py).
        part = len(ranks) < dist.get_world_size()
        made: dist.ProcessGroup = dist.new_group(
            ranks, timeout=timeout, backend=BACKEND, use_local_synchronization=part
        )
        return made

    def connect(self, own: dist.ProcessGroup) -> None:
        """Set up the communicator, while nothing else of this process can be in flight in it."""
        from prophet_ddp.device_arena import DeviceStreams, EventWatcher  # A job on processors needs none of it.

        probe(own)  # Wait for all ranks. The measured time is of no use: blocks do not go over gloo.
        own.allreduce([torch.zeros(1, dtype=torch.uint8, device=self.device)]).wait()
        torch.cuda.synchronize(self.device)
        self._made = DeviceStreams(self.device)
        self._watchers = [EventWatcher(f"prophet-{name}", self._made) for name in ("ready", "ended")]
        logger.warning(NOTICE)

    def streams(self, _device: torch.device, /) -> DeviceStreams:
        """Return the module's streams. Call it after `connect`."""
        assert self._made is not None
        return self._made

    @property
    def arena(self) -> Callable[..., DdpArena]:
        """Return the function that makes the module's arena. Call it after `connect`."""
        from prophet_ddp.device_arena import DeviceArena

        readies, ends = self._watchers
        return functools.partial(DeviceArena, readies=readies, ends=ends)

    def closing(self) -> None:
        """End the threads."""
        for watcher in self._watchers:
            watcher.close(END_LIMIT_S)
