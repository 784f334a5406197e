"""The wires: a bridge, a veth pair per node, and token buckets at both ends, made with iproute2's `ip` and `tc`.

Everything happens inside the testbed's namespaces, each given as a path that opens it; the host's are never read or
changed. Commands run in batches, so a testbed costs a few processes, each with a time limit. (With pyroute2 0.9.7,
requests sometimes never returned.)
"""

from __future__ import annotations

import shutil
import subprocess

from prophet_scheduler.core.errors import UserError

from .namespaces import launcher
from .shaping import MTU_BYTES, token_bucket

LIMIT_S = 20.0
BRIDGE, INSIDE = "prophet", "prophet0"
"""Names of the bridge and of the interface in each node."""


def require_tools() -> None:
    """Raise UserError if iproute2 is missing."""
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            raise UserError(f"the testbed needs the command {tool}: apt-get install iproute2")


def make_bridge(namespace: str) -> None:
    _batch(namespace, "ip", f"link add {BRIDGE} mtu {MTU_BYTES} type bridge", f"link set {BRIDGE} up")


def plug_in(bridge_namespace: str, port: str, namespace: str, address: str, ends: tuple[str, str] | None) -> None:
    """Make a veth pair from `port` of the bridge to the node in `namespace`, with `address` (/24).

    With inner `ends` (the node's first), make two pairs for a relay to join.
    """

    def pair(ours: str, peer: str) -> str:
        return f"link add {ours} mtu {MTU_BYTES} type veth peer name {peer} mtu {MTU_BYTES}"

    up = f"link set {port} master {BRIDGE} up"
    if ends is None:
        commands = [f"{pair(port, INSIDE)} netns {namespace}", up]
    else:
        near, far = ends
        commands = [pair(port, far), up, f"link set {far} up"]
        commands += [f"{pair(near, INSIDE)} netns {namespace}", f"link set {near} up"]
    _batch(bridge_namespace, "ip", *commands)
    _batch(namespace, "ip", "link set lo up", f"addr add {address}/24 dev {INSIDE}", f"link set {INSIDE} up")


def set_passing(bridge_namespace: str, port: str, *, passes: bool) -> None:
    """Connect or disconnect `port`; both ends keep their carrier, as behind a failed switch."""
    _batch(bridge_namespace, "ip", f"link set {port} {f'master {BRIDGE}' if passes else 'nomaster'}")


def shape(
    namespace: str, interface: str, bandwidth_bps: float | None, round_trip_s: float = 0.0, *, was_shaped: bool
) -> None:
    """Limit the interface's outgoing traffic with a `token_bucket`; a change of rate keeps queued packets."""
    if bandwidth_bps is not None:
        bucket, verb = token_bucket(bandwidth_bps, round_trip_s), "change" if was_shaped else "add"
        limits = f"rate {bucket.rate * 8}bit burst {bucket.burst} limit {bucket.limit}"
        _batch(namespace, "tc", f"qdisc {verb} dev {interface} root handle 1: tbf {limits}")
    elif was_shaped:
        _batch(namespace, "tc", f"qdisc del dev {interface} root")


def _batch(namespace: str, tool: str, *commands: str) -> None:
    """Run `commands` of `ip` or `tc` in the namespace. Raises UserError with the kernel's reason."""
    try:
        done = subprocess.run(
            launcher("enter", namespace, tool, "-batch", "-"),
            input="".join(f"{command}\n" for command in commands),
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
    except subprocess.TimeoutExpired:
        raise UserError(f"the testbed: {tool} did not finish in {LIMIT_S:g} s; leave the machine idle") from None
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[0]
        raise UserError(f"the testbed needs veth, bridge and sch_tbf of this kernel: {reason}")
