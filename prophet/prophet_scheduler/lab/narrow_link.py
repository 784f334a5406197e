"""The narrow link of a cluster, where an iteration's bytes take longest, and the delay of a round trip.

Rule of this file: arithmetic on a cluster's rates and delays. Links are full duplex. Each worker sends and receives
every gradient once, at 1 / rate seconds per bit each way. The servers carry the bytes of all workers, at workers / (sum
of the servers' rates) seconds per bit. In other topologies (engines/topology.py) a worker carries another share, and
there may be no servers.
"""

from __future__ import annotations

from collections.abc import Mapping

from prophet_scheduler.engines.spec import role_of
from prophet_scheduler.engines.topology import PARAMETER_SERVER, Topology
from prophet_scheduler.lab.cluster_config import ClusterConfig


def seconds_per_bit(cluster: ClusterConfig, topology: Topology = PARAMETER_SERVER) -> Mapping[str, float]:
    """Seconds that one bit of gradients occupies each shaped kind of link, at the initial rates.

    The kinds are `worker uplink` and `server`; both directions have the same rate and load. The slowest worker counts,
    since all wait for it. Servers share the bytes in proportion to their rates; one without a limit takes all of them.
    """
    links = {}
    if rates := _rates(cluster, "worker"):
        links["worker uplink"] = topology.worker_share(cluster.workers) / min(rates)
    servers = _rates(cluster, "server")
    if topology.through_servers and len(servers) == cluster.servers:
        links["server"] = cluster.workers / sum(servers)
    return links


def narrow_link(cluster: ClusterConfig, topology: Topology = PARAMETER_SERVER) -> str | None:
    """Return the kind of link that is busy longest in an iteration (the workers' if equal); None without limits."""
    links = seconds_per_bit(cluster, topology)
    return max(links, key=links.__getitem__, default=None)


def round_trip_s(cluster: ClusterConfig, topology: Topology) -> float:
    """Minimum seconds that link delays add to a gradient's round trip: to a server and back, or to another worker."""
    return 2 * cluster.delay if topology.through_servers or cluster.workers > 1 else 0.0


def _rates(cluster: ClusterConfig, role: str) -> list[float]:
    """Rates of the shaped nodes of `role`, in bits per second."""
    rates = (cluster.bandwidth.rate(node) for node in cluster.nodes if role_of(node) == role)
    return [rate for rate in rates if rate is not None]
