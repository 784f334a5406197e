"""The narrow link of a cluster, where the bytes of an iteration take longest, and the delay of a round trip.

Rule of this file: arithmetic on a cluster's rates. Links are full duplex. Every gradient goes up and comes down once at
each worker, which takes it 1 / rate a bit each way, and the servers carry the bytes of all workers: workers / sum of
their rates. Other topologies (engines/topology.py) have another share of a worker, and maybe no servers.
"""

from __future__ import annotations

from collections.abc import Mapping

from prophet_scheduler.engines.spec import role_of
from prophet_scheduler.engines.topology import PARAMETER_SERVER, Topology
from prophet_scheduler.lab.cluster_config import ClusterConfig


def seconds_per_bit(cluster: ClusterConfig, topology: Topology = PARAMETER_SERVER) -> Mapping[str, float]:
    """Seconds that one bit of gradients keeps each shaped kind of link busy, at the rates of the start.

    The kinds are `worker uplink` and `server`; links are as wide and carry as much in both directions. The slowest
    worker counts, since all wait for it. Servers share the bytes to suit their rates, and one without a limit takes
    all.
    """
    links = {}
    if rates := _rates(cluster, "worker"):
        links["worker uplink"] = topology.worker_share(cluster.workers) / min(rates)
    servers = _rates(cluster, "server")
    if topology.through_servers and len(servers) == cluster.servers:
        links["server"] = cluster.workers / sum(servers)
    return links


def narrow_link(cluster: ClusterConfig, topology: Topology = PARAMETER_SERVER) -> str | None:
    """Return the link that an iteration's bytes occupy longest, the workers' if equal; None if no link is limited."""
    links = seconds_per_bit(cluster, topology)
    return max(links, key=links.__getitem__, default=None)


def round_trip_s(cluster: ClusterConfig, topology: Topology) -> float:
    """Minimum seconds that the links' delays add to a gradient's way from the furthest worker and back to it.

    The way leads through the nearest server, or without servers to and from the furthest other worker.
    """
    workers = sorted(_delays(cluster, "worker"))
    if topology.through_servers:
        return 2 * (workers[-1] + min(_delays(cluster, "server")))
    return sum(workers[-2:]) if len(workers) > 1 else 0.0


def _delays(cluster: ClusterConfig, role: str) -> list[float]:
    return [cluster.delay.of(node) for node in cluster.nodes if role_of(node) == role]


def _rates(cluster: ClusterConfig, role: str) -> list[float]:
    """Rates of the shaped nodes of `role`, in bits per second."""
    rates = (cluster.bandwidth.rate(node) for node in cluster.nodes if role_of(node) == role)
    return [rate for rate in rates if rate is not None]
