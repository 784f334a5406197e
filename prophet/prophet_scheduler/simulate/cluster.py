"""The machines of a simulation: links, servers, what a message costs, how computing varies.

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
"""A rate over time: (from when, bytes per second), by time, the first from 0. Empty: no limit."""
MESSAGES_TO_ANSWER = 4
"""Latencies from a push that has left to its answer: it arrives, is acknowledged, the pull is asked for, answered."""


@dataclass(frozen=True)
class Costs:
    """What a message costs beside its bytes; the defaults are those of the testbed on two cores.

    `docs/simulator.md` says how they were measured: none is fitted to an iteration time.
    """

    overhead_s: float = 0.0
    """A message's own time on a worker's link, each way."""
    latency_s: float = 0.0
    """From the last byte leaving to the receiver acting on it."""
    header_bytes: int = HEADER_BYTES
    """Of every message; an acknowledgement or a request is nothing else."""
    sum_rate: float = 0.0
    """Bytes per second that a server adds up; 0 for no limit."""
    server_overhead_s: float = 0.0
    """A server's own time for a message with data, in or out: it deals with one after another."""
    burst_bytes: float = 0.0
    """What an idle link may catch up with at once, as a token bucket lets it; 0 for a wire."""
    piece_bytes: float = 0.0
    """Of a collective: a larger operation goes in pieces of so many bytes, one after another, and the latency is each
    one's; 0 where none does."""
    meanwhile: float = 0.0
    """Of a collective: the share of that latency, from 0 to 1, which passes while the bytes are on the wire."""
    operation_s: float = 0.0
    """Of a collective: what an operation takes of the workers' processors, which deal with one after another."""
    operation_rate: float = 0.0
    """Of a collective: bytes per second that processors move and add, while the wire carries others; 0 for no limit."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not (math.isfinite(value) and value >= 0):
                raise UserError(f"costs: {name} is {value}; it must be 0 or more")
        if self.meanwhile > 1:
            raise UserError(f"costs: meanwhile is {self.meanwhile}; it must be 1 or less")


@dataclass(frozen=True)
class Cluster:
    """Workers and servers. `links` gives a node's rate both ways (`worker0`, `server1`, ...).

    A node that is not in `links` has a link without a limit; in a collective, the channel has the least rate of
    any worker. Raises UserError for a cluster that cannot be.
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
        """In the order in which the simulation counts them."""
        workers = [f"worker{index}" for index in range(self.workers)]
        return workers + [f"server{index}" for index in range(self.servers)]


def check_rate(where: str, steps: RateSteps) -> None:
    """Raises UserError unless `steps` are a rate over time."""
    if not steps:
        return
    if steps[0][0] != 0 or any(later <= earlier for (earlier, _), (later, _) in itertools.pairwise(steps)):
        raise UserError(f"{where}: a rate over time starts at 0 s and goes up from there")
    for at_s, rate in steps:
        if not (math.isfinite(rate) and rate > 0 and math.isfinite(at_s)):
            raise UserError(f"{where}: {rate} bytes per second at {at_s} s; it must be above 0")


def with_traffic(steps: RateSteps, traffic: Sequence[tuple[float, float, float]]) -> RateSteps:
    """`steps` less the background traffic, given as (from when, until when, bytes per second).

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
    """How many times as long computing takes, by worker and iteration.

    `jitter` is the standard deviation of the logarithm (0.05 for about 5%): times are skewed to the right, as
    measured ones are. `stragglers` gives a worker's factor in every iteration.
    """
    if not (math.isfinite(jitter) and jitter >= 0):
        raise UserError(f"jitter is {jitter}; it must be 0 or more")
    for worker, factor in (stragglers or {}).items():
        if not 0 <= worker < workers or not (math.isfinite(factor) and factor > 0):
            raise UserError(f"stragglers: worker {worker} at {factor}; name a worker, and a factor above 0")
    drawn = np.exp(np.random.default_rng(seed).normal(0.0, jitter, (workers, iterations)))
    for worker, factor in (stragglers or {}).items():
        drawn[worker] *= factor
    return [[float(value) for value in row] for row in drawn]
