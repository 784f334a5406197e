"""Status, `prophet top`, metrics and records of a process with sharded models.

Rule of this file: DistributedDataParallel's agents and records, used for the first sharded model of the process.
Nothing is learned yet, so each rank only reports.

A collective counts as an all-reduce of half its bytes: an all-gather or a reduce-scatter sends half as much as that.
"""

from __future__ import annotations

import functools
from typing import Any

import torch.distributed as dist

from prophet_ddp.agent import Agents, WatchingAgent
from prophet_ddp.records import ModuleRecord, Records
from prophet_scheduler.core.settings import Settings

_agents = Agents()
_records = Records(lambda: _agents.busy_s, lambda: _agents.wake())


@functools.cache
def begin(told: Settings) -> None:
    """Have the files that these settings ask for written at the end of the process."""
    _records.begin(told)


def stepped_aside(why: str) -> None:
    """Record that FSDP2 keeps its own collectives."""
    _records.stepped_aside(why)


def given_back(why: str, record: ModuleRecord) -> None:
    """Note that FSDP2's own collectives have this model from here on."""
    _records.given_back(why, record)


def follow(rounds: Any, ranks: int) -> None:
    """Report on the first model from now on, which is sharded over, or replicated on, `ranks` ranks."""
    observes = _records.observes_next()
    rounds.record.decides = dist.get_rank() == 0
    if observes:
        rounds.log.reopen()
        rounds.record.drain = rounds.log.drain
        _agents.add(WatchingAgent(rounds))
    _records.follow(rounds.record, dist.get_rank(), dist.get_world_size(), ranks)
