"""Bytes of an iteration on each link of a cluster.

Rule of this file: arithmetic of the pattern of an exchange, without rates and engines.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Topology:
    """Links that gradients use. `worker_share(workers)` is how often a bit crosses each worker's link, each way.

    `through_servers` is True if the servers' links together carry the bits of all workers, once each way.
    """

    worker_share: Callable[[int], float]
    through_servers: bool


PARAMETER_SERVER = Topology(lambda workers: 1.0, through_servers=True)
ALL_REDUCE = Topology(lambda workers: 2 * (workers - 1) / workers, through_servers=False)
"""All-reduce with the least traffic that any algorithm needs (Thakur, Rabenseifner and Gropp 2005;
simulate/collectives.py)."""
