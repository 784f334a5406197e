"""Decision whether Prophet moves the data of a sharded module or FSDP2 keeps its own collectives.

Rule of this file: that decision, alike on all ranks. Only FSDP2's public hooks are set. Parameters, gradients and
checkpoints stay FSDP2's.

The ranks of a sharding group meet once, at its first module, and connect. If one cannot, FSDP2 stays as it is on all of
them, with one line. What keeps a single module out is in its arguments, which are alike on all ranks.
"""

from __future__ import annotations

import datetime
import functools
import os
import sys
import weakref
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore

from prophet_ddp.meeting import agree_or_end
from prophet_ddp.wide_gloo import backend_on_processors, wide_group
from prophet_fsdp.collectives import Gather, Reduce, SharedRounds
from prophet_fsdp.order import order_of
from prophet_fsdp.says import Iterations
from prophet_fsdp.wire import ShardWire
from prophet_scheduler import __version__
from prophet_scheduler.core import settings as names
from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.settings import Settings, from_environ
from prophet_scheduler.frontends.ending import WRONG, at_end, end_process
from prophet_scheduler.frontends.notices import speaks, warn_of_unknown_variables, warn_once
from prophet_scheduler.policies import get_definition

SILENT = "has not called fully_shard, or not under Prophet,"
"""Description of a rank that says nothing."""
BLOCK_BYTES = 512 * 1024
"""Size of a block where the user sets none: a few of them are what a more urgent gathering waits for."""
FAILED_PATIENCE_S = 5.0
"""Seconds that the end of the process waits for data to leave."""
STILL_LIMIT_S = 2.0
"""Seconds that it waits for operations that fail together."""
KEEPS = "FSDP2's own collectives"
"""Prefix of the message of a rank that keeps them."""
AVERAGES = (
    "FSDP2's gradients are averages under Prophet; over gloo torch alone leaves their sums (pytorch issue 162338), so "
    "weights differ from a run without Prophet"
)
"""Line that says it, since Prophet changes weights nowhere else."""
PROCESSOR = torch.device("cpu")

_shared: weakref.WeakKeyDictionary[Any, SharedRounds | None] = weakref.WeakKeyDictionary()
"""By process group; None where FSDP2 stays as it is."""


@functools.cache
def settings() -> Settings:
    """Return this process's settings; a wrong one ends it."""
    try:
        read = from_environ(os.environ, names.DDP_SCHEDULER, names.LOCAL_RANK)
        if why := get_definition(read.policy, names.DDP_SCHEDULER).servers_only:
            raise UserError(f"{names.DDP_SCHEDULER} is {read.policy!r}, which FSDP2 does not run, since {why}")
        return read
    except UserError as error:
        end_process(str(error), WRONG)


def take_over(module: Any, told: Settings) -> None:
    """Move the data of a module that `fully_shard` has made, if all ranks of its group can."""
    state = module._get_fsdp_state()
    # Also without parameters of its own: a forward pass may begin and end with it.
    module.register_forward_hook(_forward_ends)
    if not state._fsdp_param_groups:
        return
    speaks(dist.get_rank() == 0)
    if why := why_not(state):
        warn_once(f"{type(module).__name__.removeprefix('FSDP')} keeps {KEEPS}: {why}")
        return
    (group,) = state._fsdp_param_groups
    processes = group.mesh_info.shard_process_group
    if processes not in _shared:
        _shared[processes] = _share(processes, told) if processes.size() > 1 else None
    if (shared := _shared[processes]) is not None:
        module.set_custom_all_gather(Gather(shared, module))
        module.set_custom_reduce_scatter(Reduce(shared, module, group))


def _forward_ends(module: Any, inputs: object, output: object) -> None:
    order_of(module).forward_ends(module)


def why_not(state: Any) -> str | None:
    """Return why FSDP2's own collectives must stay; None if they need not."""
    from torch.distributed.fsdp import CPUOffloadPolicy
    from torch.distributed.fsdp._fully_shard._fsdp_common import FSDPMeshInfo

    groups = state._fsdp_param_groups
    if len(groups) != 1:
        return "its parameters are sharded over several meshes"
    (group,) = groups
    if type(group.mesh_info) is not FSDPMeshInfo:
        return "its mesh has two dimensions"
    if group.device != PROCESSOR:
        return f"its parameters are on {group.device.type}"
    if isinstance(group.offload_policy, CPUOffloadPolicy):
        return "offload_policy is set"
    backend = backend_on_processors(group.mesh_info.shard_process_group)
    return None if backend == "gloo" else f"its process group's backend is {backend}, not gloo"


def _share(group: dist.ProcessGroup, told: Settings) -> SharedRounds | None:
    """Connect the ranks of a group; None, with one line on its first rank, where all keep FSDP2's own collectives."""
    speaks(group.rank() == 0)
    if group.rank() == 0:
        warn_of_unknown_variables(os.environ)
    block_bytes = told.partition_bytes or BLOCK_BYTES
    own = f"Prophet {__version__}, policy {told.policy}, blocks of {block_bytes} bytes"
    timeout: datetime.timedelta = group._get_backend(PROCESSOR).options._timeout
    said, store = agree_or_end(group, own, timeout.total_seconds(), SILENT)
    for rank, text in enumerate(said):
        if text != own:
            differ = f"the ranks of this job differ, and must be alike: rank {rank} has {text}; this one {own}"
            end_process(differ, WRONG)
    failed, groups = "", []
    try:
        for way in ("upward", "downward"):
            groups.append(wide_group(PrefixStore(way, store), group.rank(), group.size(), timeout))
    except Exception as error:
        (failed, *_) = str(error).splitlines() or [type(error).__name__]
    said, _ = agree_or_end(group, failed, timeout.total_seconds(), SILENT)
    for rank, text in enumerate(said):
        if text:
            warn_once(f"FSDP2 keeps its own collectives: rank {rank} says that {text}")
            return None
    upward, downward = groups
    wire = ShardWire(upward, downward, group.rank(), group.size(), block_bytes)
    at_end(functools.partial(_process_ends, wire))
    warn_once(AVERAGES)
    says = told.says and group.rank() == 0
    return SharedRounds(wire, group, Iterations(group.size(), told.policy) if says else None)


def _process_ends(wire: ShardWire) -> None:
    """Send what other ranks may still wait for. A process that fails does not wait for long."""
    failing = sys.exc_info()[1] is not None or getattr(sys, "last_value", None) is not None
    wire.quiet(FAILED_PATIENCE_S if failing else None)
    wire.close(STILL_LIMIT_S)
