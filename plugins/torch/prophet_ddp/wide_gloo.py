"""Gloo groups of Prophet's own, with more threads than torch gives a group.

Rule of this file: how such a group is made, and how long a lone operation takes there. issuer.py sends over it. Gloo
runs at most as many of a group's operations at once as the group has threads, and torch gives it two. An all-reduce
goes back and forth several times, so on a link with a long delay two of them leave the wire idle
(docs/decisions/operations-at-once.md).
"""

from __future__ import annotations

import datetime
import os
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from prophet_ddp.meeting import CONNECT_LIMIT_S, Meeting, nobody
from prophet_scheduler.core.network import Probe
from prophet_scheduler.frontends.ending import raise_if_handlers
from prophet_scheduler.policies.algorithms.sequence import MOST_AT_ONCE

PROBE_BYTES = 4 << 10
"""Small enough to take hardly any time on the wire, but enough for each step of a ring of many ranks."""
PROBES = 3
THREADS = MOST_AT_ONCE
"""Threads of each group. An idle one costs nothing."""
OWN_DESCRIPTORS = 4
"""File descriptors of a group besides its connections. Gloo ends the process where there are too few."""
NAME = "prophet"
"""Name of each group in torch's own tools."""


def wide_group(
    store: dist.distributed_c10d.Store,
    rank: int,
    ranks: int,
    timeout: datetime.timedelta,
    lost: Callable[[], int | None] = nobody,
) -> Any:
    """Make a group of `ranks` ranks for tensors on processors. All of them call this, and meet in their own `store`.

    If one fails, all fail, with its reason. None waits for a rank that `lost()` returns.

    torch.distributed does not know the group. Its new_group names a group of some ranks by the number of groups that
    this process is in, so ranks in different numbers of groups would wait for each other for ever.
    """
    gloo: Any = dist.ProcessGroupGloo
    meeting = Meeting(store, lost)
    # Before torch 2.8 or so the timeout for connecting also applies to operations.
    bounded = hasattr(gloo, "set_timeout")
    try:
        options = gloo._Options()
        options._threads = THREADS
        options._timeout = min(timeout, datetime.timedelta(seconds=CONNECT_LIMIT_S)) if bounded else timeout
        _require_room(ranks - 1)
        options._devices = _devices()
        group = gloo(meeting, rank, ranks, options)
    except Exception as error:
        meeting.fail(rank, error)
        raise
    if bounded:
        group.set_timeout(timeout)
    _name(group, store)
    return group


def _name(group: Any, store: dist.distributed_c10d.Store) -> None:
    """Name the group in torch's FlightRecorder, where this release of torch can."""
    make: Any = dist.ProcessGroup
    try:
        known = make(store, group.rank(), group.size())
        known._register_backend(torch.device("cpu"), make.BackendType.GLOO, group)
        known._set_group_name(NAME)
        known._set_group_desc(NAME)
    except Exception as error:
        raise_if_handlers(error)


def backend_on_processors(group: dist.ProcessGroup) -> str:
    """Return the group's backend for tensors on processors. One made without a name has gloo, and says "undefined"."""
    try:
        return str(group._get_backend(torch.device("cpu")).name())
    except (RuntimeError, AttributeError):
        return str(dist.get_backend(group))


def _require_room(sockets: int) -> None:
    """Raise ConnectionError if a group would take more than half of the remaining file descriptors: the program will
    need some, too.
    """
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most == resource.RLIM_INFINITY:
        return
    taken = len(list(Path("/proc/self/fd").iterdir())) - 1  # The folder's own does not count.
    left = max(0, most - taken)
    if 2 * (sockets + OWN_DESCRIPTORS) > left:
        raise ConnectionError(
            f"{left} file descriptors are left of {most} (ulimit -n), too few for connections to {sockets} ranks"
        )


def probe(group: Any) -> Probe:
    """Return the shortest time of one all-reduce, as the slowest rank saw it: the same on all ranks.

    All ranks of a new group call it, and none goes on before all have.
    """
    data = torch.zeros(PROBE_BYTES // 4, dtype=torch.float32, device="cpu")
    took_s = []
    for _ in range(1 + PROBES):
        began_s = time.monotonic()
        group.allreduce([data]).wait()
        took_s.append(time.monotonic() - began_s)
    # In the first one ranks connect, and wait for each other.
    return Probe(PROBE_BYTES, greatest(group, min(took_s[1:])))


def greatest(group: Any, value: float) -> float:
    """Return the greatest of all ranks' values, on each of them. All ranks call it."""
    data = torch.tensor([value], dtype=torch.float64, device="cpu")
    options: Any = dist.AllreduceOptions()
    options.reduceOp = dist.ReduceOp.MAX
    group.allreduce([data], options).wait()
    return float(data)


def _devices() -> list[Any]:
    """Return the interfaces that gloo uses for a group of torch's."""
    named = [name for name in os.environ.get("GLOO_SOCKET_IFNAME", "").split(",") if name]
    make: Any = dist.ProcessGroupGloo
    return [make.create_device(interface=name) for name in named] or [make.create_default_device()]
