"""Routes of a group's parts, where several ranks share a host: each part crosses a host's link once.

Rule of this file: from the hosts of ranks to who sends what to whom. It knows no tensor and no connection.

A part that a rank owns goes to each other rank of its host, and to one rank of each other host, which stands for it
there and passes it on. A part that is summed goes the same way back: a host's ranks are added up there first. Parts of
a host's ranks have different ranks that stand for them, as far as there are enough. If no two ranks share a host, or
all do, each part goes straight to everybody.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path


class Route:
    """Route of a part that `owner` has. `hosts` has the host of each rank."""

    def __init__(self, hosts: Sequence[str], owner: int) -> None:
        members: dict[str, list[int]] = {}
        for rank, host in enumerate(hosts):
            members.setdefault(host, []).append(rank)
        number = members[hosts[owner]].index(owner)
        stands = {host: ranks[number % len(ranks)] for host, ranks in members.items()} | {hosts[owner]: owner}
        self.before = [owner if rank == stands[host] else stands[host] for rank, host in enumerate(hosts)]
        """By rank, the one that it has the part from; the owner has it from itself."""

    def after(self, rank: int) -> list[int]:
        """Return the ranks that this one passes the part on to, the next one first."""
        ranks = len(self.before)
        following = ((rank + step) % ranks for step in range(1, ranks))
        return [other for other in following if self.before[other] == rank]


def routes_of(hosts: Sequence[str]) -> list[Route]:
    """Return the route of each rank's part."""
    return [Route(hosts, owner) for owner in range(len(hosts))]


def own_host() -> str:
    """Return what ranks of one host have in common, and others do not: a machine's network, or a container's.

    A rank that cannot tell counts as alone on its host.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/net').stat().st_ino}"
    except OSError:
        return secrets.token_hex()
