"""Bytes of an iteration on each link of a cluster.

Rule of this file: arithmetic of an exchange's shape, without a rate and without an engine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Topology:
    """`worker_share` of the number of workers: how often a bit of gradients crosses each worker's link, each way.

    `through_servers`: whether the servers' links together carry the bits of all workers, once each way.
    """

    worker_share: Callable[[int], float]
    through_servers: bool


PARAMETER_SERVER = Topology(lambda workers: 1.0, through_servers=True)
ALL_REDUCE = Topology(lambda workers: 2 * (workers - 1) / workers, through_servers=False)
"""Minimum that p workers send, whatever the algorithm (Thakur, Rabenseifner and Gropp 2005;
simulate/collectives.py)."""
