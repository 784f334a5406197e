"""Distribution of one version of the model to the workers that asked for it (MLfabric, section 10.3).

Rule of this file: aggregation in reverse. Nothing here knows what a model is.

Distributing a model is collecting updates backwards in time. So Algorithms 1 and 3 order and group the workers on the
network with uplinks and downlinks swapped, and the groups are then served in reverse order. Groups without an
aggregator get the model from the server itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from prophet_mlfabric.aggregation import aggregate
from prophet_mlfabric.network import NetworkState, Node
from prophet_mlfabric.ordering import Update, order_updates


@dataclass(frozen=True)
class Hop:
    """One transfer of the model. `after` is the index of the hop that brings it to the source; None from the server.

    `reader` is the index of the request that it answers; None if the hop only feeds a distributor. Times in seconds.
    """

    source: Node
    destination: Node
    after: int | None
    reader: int | None
    end_s: float


def distribute(
    readers: Sequence[Node],
    size_bytes: float,
    network: NetworkState,
    server: Node,
    distributors: Sequence[Node],
    now_s: float,
) -> list[Hop]:
    """Return the hops to the nodes that ask at `now_s` (section 10.3), in reservation order. `network` is unchanged."""
    mirror = NetworkState(network.downlinks, network.uplinks)
    requests = [Update(place, node, size_bytes) for place, node in enumerate(readers)]
    order = order_updates(requests, mirror, server, now_s).updates
    groups = aggregate(order, mirror, server, distributors, now_s).groups
    state = network.copy()
    hops: list[Hop] = []
    for group in reversed(groups):
        source, start, after = server, now_s, None
        if group.aggregator is not None:
            source, after = group.aggregator, len(hops)
            start = state.reserve(server, source, size_bytes, now_s)
            hops.append(Hop(server, source, None, None, start))
        for reader in group.updates:
            end = state.reserve(source, reader.node, size_bytes, start)
            hops.append(Hop(source, reader.node, after, reader.id, end))
    return hops
