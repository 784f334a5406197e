"""Routes of a group's parts, if several ranks share a host: each part crosses a host's link once.

Rule of this file: from the hosts of ranks to who sends what to whom. It knows no tensors and no connections.

A part goes from its owner to each other rank of the owner's host, and to one rank of each other host: the relay, which
passes it on there. A part that is summed goes the same way back, so each host's ranks are summed first. Parts of one
host's ranks have different relays, as far as there are enough ranks. If no two ranks share a host, or all do, each part
goes straight to everybody.
"""

from __future__ import annotations

from collections.abc import Sequence


class Route:
    """Route of the part of rank `owner`. `hosts` has each rank's host."""

    def __init__(self, hosts: Sequence[str], owner: int) -> None:
        members: dict[str, list[int]] = {}
        for rank, host in enumerate(hosts):
            members.setdefault(host, []).append(rank)
        number = members[hosts[owner]].index(owner)
        stands = {host: ranks[number % len(ranks)] for host, ranks in members.items()} | {hosts[owner]: owner}
        self.before = [owner if rank == stands[host] else stands[host] for rank, host in enumerate(hosts)]
        """By rank, the rank that it gets the part from; the owner gets it from itself."""

    def after(self, rank: int) -> list[int]:
        """Return the ranks that this one passes the part on to, the next one first."""
        ranks = len(self.before)
        following = ((rank + step) % ranks for step in range(1, ranks))
        return [other for other in following if self.before[other] == rank]


def routes_of(hosts: Sequence[str]) -> list[Route]:
    """Return the route of each rank's part."""
    return [Route(hosts, owner) for owner in range(len(hosts))]
