"""FSDP2 over gloo on the simulator's ring, alone and under Prophet.

Rule of this file: from a config's cell to a run of simulate/sharded.py, with the costs of gloo that simulated_ddp.py
has; this file measures nothing and fits nothing to a job. Times are seconds, sizes bytes.
"""

from __future__ import annotations

from dataclasses import replace

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.engines.topology import ALL_REDUCE
from prophet_scheduler.lab.config import Cell
from prophet_scheduler.lab.contenders import Contender
from prophet_scheduler.lab.simulated import Planned, clips, prepare
from prophet_scheduler.lab.simulated_ddp import ISSUE_S, MESSAGE_S, MOVED_RATE, NOTHING, RING, WAYS_A_MESSAGE
from prophet_scheduler.simulate.grouped import WHOLE
from prophet_scheduler.simulate.run import channel
from prophet_scheduler.simulate.sharded import Sharding, job_of_shards, modules_of

BLOCK_BYTES = 512 * 1024
"""Size of Prophet's blocks (prophet_fsdp/takeover.py)."""
AT_ONCE = 4
"""Blocks that a rank has asked another one for (prophet_fsdp/wire.py)."""


def sharded(
    cell: Cell, contender: Contender, repeat: int, *, waits: bool, workers_per_host: int, cores_of: int
) -> Planned:
    """Return the simulation of FSDP2, under Prophet if the contender has a policy: all of them do the same there.
    `cores_of` ranks share a machine's cores.

    Raises UserError for ranks that cannot be divided so.
    """
    workers, config = cell.cluster.workers, cell.simulator
    shards = config.shards or workers
    if workers % shards or max(shards, workers_per_host) % min(shards, workers_per_host):
        hosts = f", and divide or be a multiple of the {workers_per_host} on a host" if workers_per_host > 1 else ""
        raise UserError(f"shards is {shards}; it must divide the {workers} workers{hosts}")
    variant = contender.variant
    scheduled = variant is None or variant.policy is not None
    given = {"exchange": RING, "shards": None, "keep": False}
    ring = prepare(replace(cell, simulator=config.model_copy(update=given), policies=(NOTHING,)), NOTHING, repeat)
    share, costs = ALL_REDUCE.worker_share(workers), ring.cluster.costs
    links = {node: tuple((at_s, rate * share) for at_s, rate in steps) for node, steps in ring.cluster.links.items()}
    cluster = replace(ring.cluster, links=links)
    message_s = WAYS_A_MESSAGE * costs.latency_s / (2 * (workers - 1))
    sharding = Sharding(
        shards,
        workers // shards,
        keeps=config.keep,
        scheduled=scheduled,
        waits=waits or clips(cell),
        together=workers_per_host,
        within=channel(cluster)[0][1] / MOVED_RATE,
        message_s=message_s,
    )
    assert cell.wire is not None  # The ring has been prepared.
    modules, members = modules_of(cell.wire)
    job, plan = job_of_shards(modules, sharding)
    job = replace(job, members=tuple(members[module] for (module,) in job.members))
    messages_s = cores_of * (max(shards, workers // shards) - 1) * MESSAGE_S
    issued_s = max(1.0, cores_of / 2) * ISSUE_S if scheduled else 0.0
    fields = config.model_fields_set
    costs = replace(
        costs,
        latency_s=message_s if scheduled else 0.0,
        operation_s=costs.operation_s if "operation_s" in fields else messages_s + issued_s,
        operation_rate=costs.operation_rate if "operation_rate" in fields else MOVED_RATE / cores_of,
    )
    options = replace(
        ring.options,
        plan=plan,
        partition_bytes=BLOCK_BYTES if scheduled else WHOLE,
        at_once=AT_ONCE if scheduled else 0,
    )
    return Planned(job, replace(cluster, costs=costs), None, options)
