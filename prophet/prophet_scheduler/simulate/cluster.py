"""Machines of a simulation: links, servers, costs of a message, variation of computing.

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
"""Rate over time: (from when, bytes per second), by time, the first from 0. Empty: no limit."""
MESSAGES_TO_ANSWER = 4
"""Latencies from a push's departure to its answer: arrival, acknowledgement, request of the pull, answer."""


@dataclass(frozen=True)
class Costs:
    """Costs of a message beside its bytes; the defaults are those of the testbed on two cores.

    `docs/simulator.md` says how they were measured: none is fitted to an iteration time.
    """

    overhead_s: float = 0.0
    """Time of a message on a worker's link beside its bytes, each way."""
    latency_s: float = 0.0
    """Time from the departure of the last byte to the receiver's reaction."""
    header_bytes: int = HEADER_BYTES
    """Header of every message; an acknowledgement or a request is only a header."""
    sum_rate: float = 0.0
    """Bytes per second that a server adds up; 0 for no limit."""
    server_overhead_s: float = 0.0
    """Time of a server for a message with data, in or out, one after another."""
    burst_bytes: float = 0.0
    """Bytes that a link may catch up at once after idling, as a token bucket allows; 0 for a wire."""
    piece_bytes: float = 0.0
    """Maximum piece of a collective's operation. Pieces go one after another, each with the latency; 0 for no limit."""
    meanwhile: float = 0.0
    """Share of a collective's latency, from 0 to 1, that passes while the bytes are on the wire."""
    operation_s: float = 0.0
    """Processor time of the workers for a collective's operation, one operation after another."""
    operation_rate: float = 0.0
    """Bytes per second of a collective that processors move and add beside the wire; 0 for no limit."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not (math.isfinite(value) and value >= 0):
                raise UserError(f"costs: {name} is {value}; it must be 0 or more")
        if self.meanwhile > 1:
            raise UserError(f"costs: meanwhile is {self.meanwhile}; it must be 1 or less")


@dataclass(frozen=True)
class Cluster:
    """Workers and servers. `links` gives a node's rate both ways (`worker0`, `server1`, ...).

    Other nodes have links without a limit. In a collective, the channel has the least rate of any worker. Raises
    UserError for an impossible cluster.
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
        """Nodes in the simulation's order."""
        workers = [f"worker{index}" for index in range(self.workers)]
        return workers + [f"server{index}" for index in range(self.servers)]


def check_rate(where: str, steps: RateSteps) -> None:
    """Raise UserError unless `steps` are a rate over time."""
    if not steps:
        return
    if steps[0][0] != 0 or any(later <= earlier for (earlier, _), (later, _) in itertools.pairwise(steps)):
        raise UserError(f"{where}: a rate over time starts at 0 s and goes up from there")
    for at_s, rate in steps:
        if not (math.isfinite(rate) and rate > 0 and math.isfinite(at_s)):
            raise UserError(f"{where}: {rate} bytes per second at {at_s} s; it must be above 0")


def with_traffic(steps: RateSteps, traffic: Sequence[tuple[float, float, float]]) -> RateSteps:
    """Return `steps` less the background traffic, given as (from when, until when, bytes per second).

    Traffic never takes the last hundredth of a link: TCP's fairness leaves something to the job.
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


def compute_scale(
    workers: int,
    iterations: int,
    *,
    jitter: float = 0.0,
    stragglers: Mapping[int, float] | None = None,
    seed: int = 0,
) -> list[list[float]]:
    """Return the factors of computing times, by worker and iteration.

    `jitter` is the standard deviation of their logarithm (0.05 for about 5%): times are skewed to the right, as
    measured ones are. `stragglers` has a worker's factor in every iteration.
    """
    drawn = np.exp(np.random.default_rng(seed).normal(0.0, jitter, (workers, iterations)))
    for worker, factor in (stragglers or {}).items():
        drawn[worker] *= factor
    scale: list[list[float]] = drawn.tolist()
    return scale
