"""Machines of a simulation: links, servers, message costs, and variation of computing times.

Rule of this file: values and their checks. Rates are bytes per second, times seconds.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from prophet_scheduler.core._native import Exchange
from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.iteration import HEADER_BYTES

RateSteps = tuple[tuple[float, float], ...]
"""Rate over time: (start time, bytes per second), by time, the first at 0. Empty means no limit."""
MESSAGES_TO_ANSWER = 4
"""Number of latencies from a push to the answer of its pull: push, acknowledgement, pull request, answer."""


@dataclass(frozen=True)
class Costs:
    """Costs of messages in addition to their bytes. By default there are none but the headers.

    `docs/simulator.md` says how those of the testbed were measured.
    """

    overhead_s: float = 0.0
    """Time of a message on a worker's link in addition to its bytes, each way."""
    latency_s: float = 0.0
    """Time from sending the last byte to the receiver's reaction."""
    header_bytes: int = HEADER_BYTES
    """Header of each message; acknowledgements and requests have nothing else."""
    sum_rate: float = 0.0
    """Bytes per second that a server sums; 0 for no limit."""
    server_overhead_s: float = 0.0
    """Time of a server for each message with data, in or out, one after another."""
    burst_bytes: float = 0.0
    """Maximum burst of a link after idling, as in a token bucket; 0 for a plain wire."""
    piece_bytes: float = 0.0
    """Maximum piece of a collective's operation; 0 for no limit. Pieces go one after another, each with the latency."""
    meanwhile: float = 0.0
    """Share of a collective's latency, from 0 to 1, that passes while the bytes are on the wire."""
    operation_s: float = 0.0
    """Processor time of the workers for each operation of a collective, one after another."""
    operation_rate: float = 0.0
    """Bytes per second of a collective that the workers' processors handle; 0 for no limit."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not (math.isfinite(value) and value >= 0):
                raise UserError(f"costs: {name} is {value}; it must be 0 or more")
        if self.meanwhile > 1:
            raise UserError(f"costs: meanwhile is {self.meanwhile}; it must be 1 or less")


@dataclass(frozen=True)
class Cluster:
    """Workers and servers. `links` gives the rate of a node (`worker0`, `server1`, ...) in both directions.

    The links of other nodes have no limit. With collectives, the channel has the rate of the slowest worker. Raises
    UserError for an invalid cluster.
    """

    workers: int
    servers: int = 1
    links: Mapping[str, RateSteps] = field(default_factory=dict)
    costs: Costs = Costs()
    exchange: Exchange = Exchange.SYNCHRONOUS

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise UserError(f"cluster: workers is {self.workers}; it must be 1 or more")
        if self.exchange is not Exchange.COLLECTIVE and self.servers < 1:
            raise UserError(f"cluster: servers is {self.servers}; it must be 1 or more")
        nodes = self.nodes
        for node, steps in self.links.items():
            if node not in nodes:
                raise UserError(f"cluster: links names {node!r}; the nodes are {nodes[0]} to {nodes[-1]}")
            check_rate(f"cluster: the link of {node}", steps)

    @property
    def nodes(self) -> list[str]:
        """Nodes in the simulation's order: workers, then servers."""
        workers = [f"worker{index}" for index in range(self.workers)]
        return workers + [f"server{index}" for index in range(self.servers)]


def check_rate(where: str, steps: RateSteps) -> None:
    """Raise UserError unless `steps` are a valid rate over time."""
    if not steps:
        return
    if steps[0][0] != 0 or any(later <= earlier for (earlier, _), (later, _) in itertools.pairwise(steps)):
        raise UserError(f"{where}: the times of a rate over time must start at 0 s and increase")
    for at_s, rate in steps:
        if not (math.isfinite(rate) and rate > 0 and math.isfinite(at_s)):
            raise UserError(f"{where}: {rate} bytes per second at {at_s} s; it must be above 0")


def with_traffic(steps: RateSteps, traffic: Sequence[tuple[float, float, float]]) -> RateSteps:
    """Return `steps` minus the background traffic, given as (start time, end time, bytes per second).

    Traffic leaves at least 1% of a link, since TCP's fairness leaves something for the job.
    """
    if not steps:
        raise UserError("background traffic: the link has no limit; give it a bandwidth")
    times = sorted({at for at, _ in steps} | {at for begin, end, _ in traffic for at in (begin, end) if at > 0})
    changed = []
    for at in times:
        rate = next(rate for start, rate in reversed(steps) if start <= at)
        taken = sum(load for begin, end, load in traffic if begin <= at < end)
        changed.append((at, max(rate - taken, rate / 100)))
    return tuple(changed)


def compute_scale(workers: int, iterations: int, *, jitter: float, seed: int = 0) -> list[list[float]]:
    """Return factors of computing times, by worker and iteration.

    `jitter` is the standard deviation of their logarithm (0.05 for about 5%): times are skewed to the right, as in
    measurements.
    """
    scale: list[list[float]] = np.exp(np.random.default_rng(seed).normal(0.0, jitter, (workers, iterations))).tolist()
    return scale
