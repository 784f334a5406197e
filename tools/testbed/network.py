"""The wires: a bridge, a veth pair a node and the token buckets at both ends, made with pyroute2.

Everything is made inside namespaces of the testbed; nothing is looked up or changed in the host's. A namespace is given
as a path that opens it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from prophet.errors import UserError

from .shaping import MTU_BYTES, token_bucket

LOOPBACK_INDEX = 1
ROOT = 0xFFFFFFFF
QDISC = 0x10000  # 1:0


@contextmanager
def routing(namespace: str) -> Iterator[Any]:
    """A pyroute2.IPRoute in the namespace; what the kernel refuses becomes one line."""
    try:
        from pyroute2 import IPRoute
        from pyroute2.netlink.exceptions import NetlinkError
    except ImportError:
        raise UserError("the testbed needs pyroute2: pip install 'byteps-prophet[experiments]'") from None
    try:
        with IPRoute(netns=namespace) as route:
            yield route
    except NetlinkError as error:
        raise UserError(f"the testbed needs veth, bridge and sch_tbf of this kernel: {error}") from error


def index_of(route: Any, interface: str) -> int:
    index: int = route.link_lookup(ifname=interface)[0]
    return index


def make_bridge(route: Any, bridge: str) -> None:
    route.link("add", ifname=bridge, kind="bridge")
    route.link("set", index=index_of(route, bridge), state="up", mtu=MTU_BYTES)


def plug_in(route: Any, bridge: str, port: str, namespace: str, interface: str, address: str) -> None:
    """A veth pair from `port` of the bridge to `interface` of the node in `namespace`, which gets `address` (of a /24)."""
    descriptor = os.open(namespace, os.O_RDONLY)
    try:
        peer = {"ifname": interface, "net_ns_fd": descriptor, "mtu": MTU_BYTES}
        route.link("add", ifname=port, kind="veth", mtu=MTU_BYTES, peer=peer)
    finally:
        os.close(descriptor)
    route.link("set", index=index_of(route, port), master=index_of(route, bridge), state="up")
    with routing(namespace) as inside:
        index = index_of(inside, interface)
        inside.link("set", index=LOOPBACK_INDEX, state="up")
        inside.addr("add", index=index, address=address, prefixlen=24)
        inside.link("set", index=index, state="up")


def shape(namespace: str, interface: str, bandwidth_bps: float | None, *, was_shaped: bool) -> None:
    """Limits what leaves by the interface; a change of rate keeps what is queued."""
    if bandwidth_bps is None and not was_shaped:
        return
    with routing(namespace) as route:
        index = index_of(route, interface)
        if bandwidth_bps is None:
            route.tc("del", index=index, parent=ROOT)
        else:
            bucket = token_bucket(bandwidth_bps)
            command = "change" if was_shaped else "add"
            route.tc(command, "tbf", index, QDISC, rate=bucket.rate, burst=bucket.burst, limit=bucket.limit)
