"""Which link of a cluster is the narrow one, where the bytes of an iteration take longest, and how far they go.

Rule of this file: arithmetic on a cluster's rates. Links are full duplex. Every gradient goes up and comes down once at
each worker, and the servers carry the bytes of all workers, so a link's time for a bit of gradients is

    worker: 1 / rate each way            servers: workers / sum of their rates each way

With other topologies (engines/topology.py) a worker's share is another, and there may be no servers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from prophet_scheduler.engines.spec import role_of
from prophet_scheduler.engines.topology import PARAMETER_SERVER, Topology
from prophet_scheduler.lab.cluster_config import ClusterConfig

NarrowLink = Literal["worker uplink", "worker downlink", "server"]


def seconds_per_bit(cluster: ClusterConfig, topology: Topology = PARAMETER_SERVER) -> Mapping[NarrowLink, float]:
    """Seconds that one bit of gradients keeps each shaped kind of link busy, at the rates of the start.

    Of workers the slowest counts, since all wait for it; the servers may share the bytes as suits their rates, and one
    that is not shaped takes what the others cannot.
    """
    links: dict[NarrowLink, float] = {}
    rates = _rates(cluster, "worker")
    if rates:
        share = topology.worker_share(cluster.workers)
        links["worker uplink"] = links["worker downlink"] = share / min(rates)
    servers = _rates(cluster, "server")
    if topology.through_servers and len(servers) == cluster.servers:
        links["server"] = cluster.workers / sum(servers)
    return links


def narrow_link(cluster: ClusterConfig, topology: Topology = PARAMETER_SERVER) -> NarrowLink | None:
    """The link that an iteration's bytes occupy longest; None where no link is limited.

    A cluster's links are as wide in both directions and carry as much each way, so of a worker's two the uplink is
    named: a byte has to be up before it can come down. Of equals the workers' is named before the servers'.
    """
    links = seconds_per_bit(cluster, topology)
    named = sorted(links, key=lambda link: -links[link])  # stable: equals stay in order
    return named[0] if named else None


def round_trip_s(cluster: ClusterConfig, topology: Topology = PARAMETER_SERVER) -> float:
    """Seconds that the links' delays add at least to the way of a gradient, from the furthest worker and back to it.

    Through the nearest server; without servers, to and from the furthest of the other workers, whose part it waits for.
    """
    workers = sorted(_delays(cluster, "worker"))
    if topology.through_servers:
        return 2 * (workers[-1] + min(_delays(cluster, "server")))
    return sum(workers[-2:]) if len(workers) > 1 else 0.0


def _delays(cluster: ClusterConfig, role: str) -> list[float]:
    return [cluster.delay.of(node) for node in cluster.nodes if role_of(node) == role]


def _rates(cluster: ClusterConfig, role: str) -> list[float]:
    """Of the nodes of `role` that are shaped, in bits per second."""
    rates = (cluster.bandwidth.rate(node) for node in cluster.nodes if role_of(node) == role)
    return [rate for rate in rates if rate is not None]
