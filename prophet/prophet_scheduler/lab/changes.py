"""Changes to a job's network and programs during training: rates, others' traffic and faults, by time.

Rule of this file: turn a cluster's config into timed actions; pure except for the callbacks passed in. Times are
seconds since all workers finished their first iteration, rates bits per second.
"""

from __future__ import annotations

import heapq
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter

from prophet_scheduler.lab.cluster_config import ClusterConfig
from prophet_scheduler.lab.faults import FaultKind, JobFault
from prophet_scheduler.lab.testbed import Testbed

NodeCall = Callable[[str], None]
"""Callback that gets a node's name."""


@dataclass(frozen=True)
class Change:
    """Action `make` at time `at_s`; `breaks` is True if it starts a fault."""

    at_s: float
    make: Callable[[], None]
    breaks: bool = False


def changes(
    cluster: ClusterConfig, workers: Sequence[str], host: Testbed, kill: NodeCall, start: NodeCall
) -> Iterator[Change]:
    """Return all changes by time, endlessly if a fault repeats.

    `kill` kills a node's program, `start` restarts it. At equal times, ends come before starts.
    """
    by_time = attrgetter("at_s")
    traffic_ends = [Change(part.until_s, partial(host.set_traffic, part.node, None)) for part in cluster.traffic]
    traffic_begins = [Change(part.from_s, partial(host.set_traffic, part.node, part.rate)) for part in cluster.traffic]
    ends: list[Iterable[Change]] = [sorted(traffic_ends, key=by_time)]
    begins: list[Iterable[Change]] = [sorted(traffic_begins, key=by_time)]
    rates = [
        Change(at_s, partial(host.set_bandwidth, worker, rate))
        for at_s, rate in cluster.bandwidth.changes
        for worker in workers
    ]
    if cluster.rate_mix is not None:
        for at_s, place, share in cluster.rate_mix.draw(len(workers)):
            usual = cluster.bandwidth.rate(workers[place])
            assert usual is not None  # ClusterConfig checks this
            rates.append(Change(at_s, partial(host.set_bandwidth, workers[place], share * usual)))
    for fault in cluster.faults:
        if fault.node is not None:
            begin, end = _made(fault, fault.node, cluster, host, kill, start)
            begins.append(map(partial(Change, make=begin, breaks=True), fault.times(fault.from_s)))
            ends.append(map(partial(Change, make=end), fault.times(fault.until_s)))
    return heapq.merge(*ends, rates, *begins, key=by_time)


def _made(
    fault: JobFault, node: str, cluster: ClusterConfig, host: Testbed, kill: NodeCall, start: NodeCall
) -> tuple[Callable[[], None], Callable[[], None]]:
    """Return the action that starts a fault at `node`, and the action that ends it."""
    match fault.kind:
        case FaultKind.LINK_DOWN:
            return partial(host.set_link, node, passes=False), partial(host.set_link, node, passes=True)
        case FaultKind.SLOW_LINK:
            usual = cluster.bandwidth.rate(node)
            return partial(host.set_bandwidth, node, fault.rate), partial(host.set_bandwidth, node, usual)
        case FaultKind.STOPPED:
            stop, go_on = signal.SIGSTOP, signal.SIGCONT
            return partial(host.send_signal, node, stop), partial(host.send_signal, node, go_on)
        case _:  # FaultKind.KILLED; dropped messages have no node
            return partial(kill, node), partial(start, node)
