"""Changes of a job's network and programs while it trains: rates, others' traffic and faults, by time.

Rule of this file: from a cluster's config to timed actions; pure except for the calls passed in. Times are seconds
after all workers finished their first iteration, rates bits per second.
"""

from __future__ import annotations

import heapq
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from prophet_scheduler.lab.cluster_config import ClusterConfig
from prophet_scheduler.lab.faults import FaultKind, JobFault


class Actions(Protocol):
    """Actions on the nodes of a running job."""

    def set_bandwidth(self, name: str, bits_per_s: float | None) -> None: ...
    def set_traffic(self, name: str, bits_per_s: float | None) -> None: ...
    def set_link(self, name: str, *, passes: bool) -> None: ...
    def send_signal(self, name: str, number: signal.Signals) -> None: ...


NodeCall = Callable[[str], None]
"""Call with a node's name."""


@dataclass(frozen=True)
class Change:
    """Action `make` at time `at_s`; `breaks` is True if a fault begins with it."""

    at_s: float
    make: Callable[[], None]
    breaks: bool = False


def changes(
    cluster: ClusterConfig, workers: Sequence[str], host: Actions, kill: NodeCall, start: NodeCall
) -> Iterator[Change]:
    """Return all changes by time, without end if a fault repeats.

    `kill` ends a node's program and `start` restarts a killed one. At the same moment, ends come before beginnings.
    """
    traffic = sorted(cluster.traffic, key=lambda part: part.from_s)
    ends: list[Iterator[Change]] = [
        iter([Change(part.until_s, partial(host.set_traffic, part.node, None)) for part in traffic])
    ]
    rates = [
        Change(at_s, partial(host.set_bandwidth, worker, rate))
        for at_s, rate in cluster.bandwidth.changes
        for worker in workers
    ]
    if cluster.rate_mix is not None:
        rates += [
            Change(at_s, partial(host.set_bandwidth, workers[worker], share * _rate(cluster, workers[worker])))
            for at_s, worker, share in cluster.rate_mix.draw(len(workers))
        ]
    begins: list[Iterator[Change]] = [
        iter([Change(part.from_s, partial(host.set_traffic, part.node, part.rate)) for part in traffic])
    ]
    for fault in cluster.faults:
        if fault.node is not None:
            begin: Callable[[], None]
            end: Callable[[], None]
            if fault.kind is FaultKind.KILLED:
                begin, end = partial(kill, fault.node), partial(start, fault.node)
            else:
                begin, end = _made(fault, fault.node, cluster, host)
            begins.append(_at(fault.begins(), begin, breaks=True))
            ends.append(_at(fault.ends(), end))
    return heapq.merge(*ends, rates, *begins, key=lambda change: change.at_s)


def _rate(cluster: ClusterConfig, worker: str) -> float:
    rate = cluster.bandwidth.rate(worker)
    assert rate is not None  # ClusterConfig checks this
    return rate


def _at(times_s: Iterator[float], make: Callable[[], None], *, breaks: bool = False) -> Iterator[Change]:
    return (Change(at_s, make, breaks) for at_s in times_s)


def _made(
    fault: JobFault, node: str, cluster: ClusterConfig, host: Actions
) -> tuple[Callable[[], None], Callable[[], None]]:
    """Return the action that makes a fault at `node` and the one that ends it."""
    match fault.kind:
        case FaultKind.LINK_DOWN:
            return partial(host.set_link, node, passes=False), partial(host.set_link, node, passes=True)
        case FaultKind.SLOW_LINK:
            usual = cluster.bandwidth.rate(node)
            return partial(host.set_bandwidth, node, fault.rate), partial(host.set_bandwidth, node, usual)
        case FaultKind.STOPPED:
            stop, go_on = signal.SIGSTOP, signal.SIGCONT
            return partial(host.send_signal, node, stop), partial(host.send_signal, node, go_on)
        case _:
            raise AssertionError(f"{fault.kind} is made elsewhere")
