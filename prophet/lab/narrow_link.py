"""Which link of a cluster is the narrow one: where the bytes of an iteration take longest.

Rule of this file: arithmetic on a cluster's rates. Links are full duplex. Every gradient goes up and comes down once at
each worker, and the servers carry the bytes of all workers, so a link's time for a bit of gradients is

    worker: 1 / rate each way            servers: workers / sum of their rates each way

and in an all-reduce there are no servers and each worker sends and receives 2 (p-1)/p of every bit (Thakur,
Rabenseifner and Gropp 2005; prophet/simulate/collectives.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from prophet.lab.cluster_config import ClusterConfig

NarrowLink = Literal["worker uplink", "worker downlink", "server"]


def seconds_per_bit(cluster: ClusterConfig, *, all_reduce: bool = False) -> Mapping[NarrowLink, float]:
    """Seconds that one bit of gradients keeps each shaped kind of link busy, at the rates of the start.

    Of workers the slowest counts, since all wait for it; the servers may share the bytes as suits their rates, and one
    that is not shaped takes what the others cannot.
    """
    links: dict[NarrowLink, float] = {}
    rates = _rates(cluster, "worker")
    if rates:
        share = 2 * (cluster.workers - 1) / cluster.workers if all_reduce else 1.0
        links["worker uplink"] = links["worker downlink"] = share / min(rates)
    servers = _rates(cluster, "server")
    if len(servers) == cluster.servers and not all_reduce:
        links["server"] = cluster.workers / sum(servers)
    return links


def narrow_link(cluster: ClusterConfig, *, all_reduce: bool = False) -> NarrowLink | None:
    """The link that an iteration's bytes occupy longest; None where no link is limited.

    A cluster's links are as wide in both directions and carry as much each way, so of a worker's two the uplink is
    named: a byte has to be up before it can come down. Of equals the workers' is named before the servers'.
    """
    links = seconds_per_bit(cluster, all_reduce=all_reduce)
    named = sorted(links, key=lambda link: -links[link])  # stable: equals stay in order
    return named[0] if named else None


def _rates(cluster: ClusterConfig, role: str) -> list[float]:
    """Of the nodes of `role` that are shaped, in bits per second."""
    found = (cluster.bandwidth.rate(node) for node in cluster.nodes if node.startswith(role))
    return [rate for rate in found if rate is not None]
