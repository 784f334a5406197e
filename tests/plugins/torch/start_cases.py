"""Cases of test_ends.py: ranks that are lost, or have few descriptors, while the others begin. end_ranks.py runs them
with end_cases.py's.
"""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist
import torch.distributed.fsdp as fsdp
from end_cases import mark, model, prophet, trained
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

MOST_LEFT = 13
"""Descriptors with which there is room for all that a rank needs."""


def die(*_: Any) -> NoReturn:
    mark()
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def lost_before_it_shards(rank: int, dies: int = 1) -> None:
    """A rank dies before it calls fully_shard, where FSDP2 alone waits for nobody."""
    dist.barrier()
    if rank == dies:
        die()
    sharded = model()
    for module in (sharded[0], sharded):
        fsdp.fully_shard(module)
    sharded(torch.ones(4, 32)).square().mean().backward()


lost_of_three_before_it_shards = lost_before_it_shards


def first_lost_before_it_shards(rank: int) -> None:
    """The rank with the store dies before it calls fully_shard."""
    lost_before_it_shards(rank, dies=0)


def first_lost_of_a_mesh(rank: int) -> None:
    """The rank with the store dies before others meet in groups that it is not in."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "shards"))
    dist.barrier()
    if rank == 0:
        die()
    sharded = model()
    fsdp.fully_shard(sharded, mesh=mesh)
    sharded(torch.ones(4, 32)).square().mean().backward()


def lost_before_its_module(rank: int) -> None:
    """A rank dies before it makes its module, in whose constructor nobody waits."""
    dist.barrier()
    if rank == 1:
        die()
    trained(DistributedDataParallel(model(), init_sync=False), 3)


def lost_as_it_meets(rank: int) -> None:
    """A rank dies after the constructor of its module, where Prophet's ranks meet."""
    if prophet() and rank == 1:
        from prophet_ddp import takeover

        vars(takeover)["take_over"] = die
    trained(DistributedDataParallel(model()), 3)


def lost_as_it_connects(rank: int) -> None:
    """A rank dies where Prophet's ranks connect."""
    if prophet() and rank == 1:
        from prophet_ddp import wide_gloo

        vars(wide_gloo)["_devices"] = die
    trained(DistributedDataParallel(model()), 3)


def _told_to_end(module: Any, name: str, rank: int) -> None:
    """Have rank 1 told to end where this module uses what has this name. The program's handler raises."""

    def handle(*_: Any) -> NoReturn:
        mark()
        raise RuntimeError("told to end")

    def told(*_: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    if rank == 1:
        signal.signal(signal.SIGTERM, handle)
        vars(module)[name] = told


def told_to_end_as_it_meets(rank: int) -> None:
    """A rank is told to end while Prophet takes the reducer's place."""
    from prophet_ddp import takeover

    _told_to_end(takeover, "why_not", rank)
    trained(DistributedDataParallel(model()), 3)


def told_to_end_as_its_group_is_named(rank: int) -> None:
    """A rank is told to end while Prophet tells torch the name of its group."""
    _told_to_end(dist, "ProcessGroup", rank)
    trained(DistributedDataParallel(model()), 3)


def told_to_end_as_it_shards(rank: int) -> None:
    """A rank is told to end while Prophet takes over what it has sharded."""
    from prophet_fsdp import takeover

    _told_to_end(takeover, "why_not", rank)
    sharded = model()
    fsdp.fully_shard(sharded)
    sharded(torch.ones(4, 32)).square().mean().backward()


def fewer_and_fewer_descriptors(rank: int) -> None:
    """One rank has a few file descriptors left for each new module, and one less for each."""
    mark()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    for left in range(MOST_LEFT, 1, -1):
        if rank == 1:
            taken = len(list(Path("/proc/self/fd").iterdir())) - 1  # except that of the folder
            resource.setrlimit(resource.RLIMIT_NOFILE, (taken + left, limits[1]))
        ddp = DistributedDataParallel(model())
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        trained(ddp, 1)


CASES: dict[str, Callable[[int], None]] = {
    name: value
    for name, value in list(globals().items())
    if name.partition("_")[0] in ("lost", "first", "told", "fewer")
}
