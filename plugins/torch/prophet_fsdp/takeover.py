"""The decision whether Prophet moves a sharded module's data or FSDP2 keeps its own collectives.

Rule of this file: that decision, alike on all ranks. Only FSDP2's public hooks are set, and its call of all_reduce,
which has no hook, is replaced. Parameters, gradients and checkpoints stay FSDP2's.

The ranks of a group meet once, at its first module, and connect. If one cannot, FSDP2 stays as it is on all ranks of
the mesh, with one line. A single module is kept out only by its arguments, which are alike on all ranks.
"""

from __future__ import annotations

import functools
import os
import weakref
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultReduceScatter

from prophet_ddp.agent import records
from prophet_ddp.ends import STILL_LIMIT_S, PatienceAtEnd
from prophet_ddp.environment import own_host, settings_for
from prophet_ddp.lost_ranks import ended_rank
from prophet_ddp.meeting import LostRank, agree_or_end, timeout_of
from prophet_ddp.wide_gloo import backend_on_processors, wide_group
from prophet_fsdp.collectives import Gather, Iterations, Reduce, SharedRounds, stand_behind_all_reduce
from prophet_fsdp.order import order_of
from prophet_fsdp.rounds import expect, makes_gradients, name_of
from prophet_fsdp.wire import ShardGroups, ShardWire
from prophet_scheduler import __version__
from prophet_scheduler.core.settings import Settings
from prophet_scheduler.frontends.ending import WRONG, at_end, end_process, raise_if_handlers
from prophet_scheduler.frontends.notices import speaks, warn_of_unknown_variables, warn_once
from prophet_scheduler.frontends.records import require_records
from prophet_scheduler.frontends.torch import guards as torch_guards
from prophet_scheduler.frontends.torch import steps
from prophet_scheduler.frontends.torch.awaited import watch_backward

SILENT = "has not called fully_shard, or not under Prophet,"
"""Words of messages about a silent rank."""
BLOCK_BYTES = 512 * 1024
"""Default size of a block. A more urgent all-gather has to wait for a few of them."""
KEEPS = "FSDP2's own collectives"
"""Prefix of the announcement of a rank that keeps them."""
AVERAGES = (
    "FSDP2's gradients are averages under Prophet; without it this torch leaves their sums over gloo (pytorch issue "
    "162338), so weights can differ from a run without Prophet"
)
"""Line printed if torch leaves sums. Prophet changes weights nowhere else, apart from rounding."""
PROCESSOR = torch.device("cpu")

_shared: weakref.WeakKeyDictionary[Any, SharedRounds | None] = weakref.WeakKeyDictionary()
"""By process group; None if FSDP2 keeps its own collectives there."""
_wires: dict[ShardWire, weakref.ref[dist.ProcessGroup]] = {}
"""With the groups whose ranks they connect."""
_agreed: weakref.WeakKeyDictionary[Any, weakref.WeakKeyDictionary[Any, bool]] = weakref.WeakKeyDictionary()
"""By the two groups of a mesh, which stay the program's to destroy: True if all ranks of both have connected."""


@functools.cache
def settings() -> Settings:
    """Return this process's settings; a wrong one ends the process."""
    return settings_for("FSDP2", require_records)


def take_over(module: Any, told: Settings) -> None:
    """Move the data of a module that `fully_shard` has made, if all ranks of its group can."""
    state = module._get_fsdp_state()
    # Even for a module without parameters of its own: a forward pass may begin and end with it.
    module.register_forward_hook(_forward_ends)
    if not state._fsdp_param_groups:
        return
    speaks(_is_first(state))
    records.begin(told)
    if why := why_not(state):
        warn_once(f"{name_of(module)} keeps {KEEPS}: {why}")
        records.stepped_aside(why)
        return
    (group,) = state._fsdp_param_groups
    parts, replicas = _shared_by(*_groups(group.mesh_info), told)
    if parts is not None:
        module.set_custom_all_gather(Gather(parts, module))
    else:
        module.register_forward_pre_hook(functools.partial(_forward_begins, replicas))
    first = parts or replicas
    if first is not None and first.iterations is None and told.says and _is_first(state):
        first.iterations = Iterations(group.mesh_info.mesh.size(), told.policy)
    if replicas is not None:
        stand_behind_all_reduce()
    if parts is not None or replicas is not None:
        module.set_custom_reduce_scatter(Reduce(parts, replicas, module, group))
        expect(module)


def _groups(mesh_info: Any) -> tuple[dist.ProcessGroup | None, dist.ProcessGroup | None]:
    """Return the group of ranks that have different parts of the parameters, and that of ranks with the same part."""
    parts, replicas = (getattr(mesh_info, f"{kind}_process_group", None) for kind in ("shard", "replicate"))
    return parts, replicas


def _shared_by(
    parts: dist.ProcessGroup | None, replicas: dist.ProcessGroup | None, told: Settings
) -> tuple[SharedRounds | None, SharedRounds | None]:
    """Return what modules of these groups share; None for a group of one rank, or if all keep FSDP2's collectives."""
    groups = [processes for processes in (parts, replicas) if processes is not None and processes.size() > 1]
    for processes in groups:
        if processes not in _shared:
            _shared[processes] = _share(processes, told)
    if len(groups) > 1:
        agreed = _agreed.setdefault(groups[0], weakref.WeakKeyDictionary())
        if groups[1] not in agreed:
            # Any group of the mesh may have failed. Agreeing in one dimension and then in the other tells every rank.
            failed = any(_shared[processes] is None for processes in groups)
            for processes in groups:
                try:
                    failed = any(_agree(processes, KEEPS if failed else "")[0])
                except LostRank as error:
                    failed = True
                    _keep(str(error))
            agreed[groups[1]] = not failed
        if not agreed[groups[1]]:
            return None, None
    shared_parts, shared_replicas = (_shared.get(each) if each is not None else None for each in (parts, replicas))
    return shared_parts, shared_replicas


def _is_first(state: Any) -> bool:
    """Return True on the first rank of the module's meshes."""
    return all(dist.get_rank() == int(group.mesh_info.mesh.mesh.min()) for group in state._fsdp_param_groups)


def _forward_begins(replicas: SharedRounds | None, module: Any, inputs: object) -> None:
    order_of(module).forward_begins(module)
    if replicas is not None:
        replicas.moves(0)


def _forward_ends(module: Any, inputs: object, output: object) -> None:
    order_of(module).forward_ends(module)


def why_not(state: Any) -> str | None:
    """Return why FSDP2's own collectives must stay; None if they need not."""
    from torch.distributed.fsdp import CPUOffloadPolicy

    groups = state._fsdp_param_groups
    if len(groups) != 1:
        return "its parameters are sharded over several meshes"
    (group,) = groups
    if group.device != PROCESSOR:
        return f"its parameters are on {group.device.type}"
    if isinstance(group.offload_policy, CPUOffloadPolicy):
        return "offload_policy is set"
    backends = {backend_on_processors(processes) for processes in _groups(group.mesh_info) if processes is not None}
    return None if backends == {"gloo"} else f"its process group's backend is {' and '.join(backends)}, not gloo"


def _share(group: dist.ProcessGroup, told: Settings) -> SharedRounds | None:
    """Connect the ranks of a group. None, with one line on its first rank, if all keep FSDP2's own collectives."""
    try:
        return _connect(group, told)
    except LostRank as error:
        _keep(str(error))
        return None


def _keep(why: str) -> None:
    warn_once(f"FSDP2 keeps its own collectives: {why}")
    records.stepped_aside(why)


def _connect(group: dist.ProcessGroup, told: Settings) -> SharedRounds | None:
    if dist.get_rank() == 0:
        warn_of_unknown_variables(os.environ)
    block_bytes = told.partition_bytes or BLOCK_BYTES
    own = f"Prophet {__version__}, policy {told.policy}, blocks of {block_bytes} bytes"
    timeout = timeout_of(group, PROCESSOR)
    said, store = _agree(group, own)
    for rank, text in enumerate(said):
        if text != own:
            differ = f"the ranks of this job differ, and must be alike: rank {rank} has {text}; this one {own}"
            end_process(differ, WRONG)
    failed, groups = "", []
    try:
        for way in ("upward", "downward"):
            own_store, lost = PrefixStore(way, store), functools.partial(ended_rank, group)
            groups.append(wide_group(own_store, group.rank(), group.size(), timeout, lost))
    except Exception as error:
        raise_if_handlers(error)
        (failed, *_) = str(error).splitlines() or [type(error).__name__]
    said, _ = _agree(group, failed)
    for rank, text in enumerate(said):
        if text:
            _keep(f"rank {rank} says that {text}")
            return None
    hosts, _ = _agree(group, own_host())
    watch_backward(makes_gradients)
    torch_guards.install()  # Threads that begin before the first gradient are watched, too.
    steps.install()
    upward, downward = groups
    wire = ShardWire(ShardGroups(upward, downward, group.rank(), group.size(), timeout, hosts), block_bytes)
    if not _wires:
        at_end(_process_ends)
    _close_unused()
    _wires[wire] = weakref.ref(group)
    averages = _averages(group)
    if not averages:
        warn_once(AVERAGES)
    return SharedRounds(wire, group, tries_own=averages and told.policy == "prophet")


def _averages(group: dist.ProcessGroup) -> bool:
    """Return True if FSDP2's own reduction divides by the number of ranks. All ranks of the group call it together."""
    ones, average = (torch.ones(count, dtype=torch.float32, device=PROCESSOR) for count in (group.size(), 1))
    DefaultReduceScatter()(average, ones, group, dist.ReduceOp.AVG)
    return average.item() == 1


def _agree(group: dist.ProcessGroup, text: str) -> tuple[list[str], Any]:
    return agree_or_end(group, text, timeout_of(group, PROCESSOR).total_seconds(), SILENT)


def _close_unused() -> None:
    """Close the wires of groups that the program has destroyed."""
    for wire, group in list(_wires.items()):
        if group() is None and wire.quiet(0.0):
            wire.close(STILL_LIMIT_S)
            del _wires[wire]


def _process_ends() -> None:
    """Send what other ranks may still wait for. A failing process does not wait for long."""
    patience = PatienceAtEnd()
    for wire in (*_wires, *_wires):  # Twice: an arrival on one wire may start a stage on another.
        patience.waits(wire.quiet)
    for wire in _wires:
        wire.close(STILL_LIMIT_S)
