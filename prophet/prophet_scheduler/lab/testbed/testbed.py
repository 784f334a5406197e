"""The testbed: nodes, each with an address, bandwidth and delay, the processes inside them, and measured rates.

    node 0 -- tbf ==== tbf -- bridge -- tbf ==== tbf -- node 1
             (up)      (down)           ...

Each node is a network namespace, joined by a veth pair to a bridge in its own namespace. A token bucket at the node's
end limits the rate of sending, one at the bridge's end that of receiving; delay.py describes a relay in between.
Namespaces have no names, and names inside them are private, so testbeds do not collide. launch.py tells how they end.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from typing_extensions import Self

from prophet_scheduler.core.errors import UserError

from .delay import SLACK_S, Relay, check_delay, tcp_buffer_bytes
from .namespaces import launcher
from .network import BRIDGE, INSIDE, make_bridge, plug_in, require_tools, set_passing, shape
from .shaping import check_bandwidth

TRAFFIC = Path(__file__).with_name("traffic.py")
SUBNET = "10.77.0"
PROBE = ""  # the testbed's own node, unshaped: the peer in `check`
MAX_NODES = 250
DISCARD_FRACTION = 1 / 3  # of a measurement, for the first burst and TCP's slow start
CHECK_S = 1.2
MOST_CHECKS = 3  # per rate, since another program may have taken the CPU during a check
RAMP_ROUND_TRIPS = 30  # added to a measurement, for TCP to fill a link with a delay
ASKED = 21  # number of measured round trips
TOLERANCE = 0.10  # of a link's rate and round trip, as a share
PATIENCE_S = 15.0


@dataclass(frozen=True)
class NodeSpec:
    """One machine: `bandwidth_bps` in bits per second each way, None for an unshaped link.

    Its programs run only on `cores` (numbers of this machine's CPU cores), on all if empty. `delay_s` is the delay of a
    frame each way, None for a link without a relay. The rate and round trip of a link that is neither shaped nor
    delayed are measured only if `measured`.
    """

    name: str
    bandwidth_bps: float | None
    cores: tuple[int, ...] = ()
    delay_s: float | None = None
    measured: bool = False


class Testbed:
    """Nodes on one bridge, as a context manager.

    Needs root, or root of a user namespace (`reexec_in_user_namespace`). On exit, or if this process is killed, every
    process in a node gets SIGTERM, then SIGKILL two seconds later, and the namespaces vanish.
    """

    __test__ = False  # for pytest

    def __init__(self, nodes: Sequence[NodeSpec]) -> None:
        """Check the nodes. Raises UserError for an invalid one."""
        names = [node.name for node in nodes]
        if not 1 <= len(names) <= MAX_NODES:
            raise UserError(f"a testbed has 1 to {MAX_NODES} nodes, not {len(names)}")
        for node in nodes:
            check_bandwidth(node.name, node.bandwidth_bps)
            check_delay(node.name, node.delay_s)
        self._specs = {node.name: node for node in nodes}
        self._places = {name: place for place, name in enumerate([*names, PROBE])}
        self._buffer_bytes = _buffer_bytes(nodes)
        self._shaped: dict[str, float | None] = dict.fromkeys(names)
        self._holder: subprocess.Popen[str] | None = None
        self._namespaces: list[str] = []  # paths: one per place, then the bridge's
        self._processes: list[tuple[str, subprocess.Popen[bytes]]] = []
        self._relays: dict[str, Relay] = {}
        self._traffic_of: dict[str, list[subprocess.Popen[str]]] = {}

    def __enter__(self) -> Self:
        require_tools()
        self._holder = subprocess.Popen(
            launcher("hold", str(len(self._places) + 1), str(self._buffer_bytes)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C must reach only the harness, which then closes the testbed
        )
        try:
            assert self._holder.stdout and self._holder.stderr
            descriptors = self._holder.stdout.readline().split()
            if not descriptors:
                raise UserError(f"no network namespaces: {self._holder.stderr.read().strip()}")
            self._namespaces = [f"/proc/{self._holder.pid}/fd/{descriptor}" for descriptor in descriptors]
            make_bridge(self._bridge)
            for node in self._places:
                self._plug_in(node)
            for node, spec in self._specs.items():
                self.set_bandwidth(node, spec.bandwidth_bps)
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._close()

    def _plug_in(self, node: str) -> None:
        place, delay_s = self._places[node], self._specs[node].delay_s if node in self._specs else None
        ends = None if delay_s is None else (f"near{place}", f"far{place}")
        plug_in(self._bridge, self._port(node), self.namespace(node), self.address(node), ends)
        if ends is not None and delay_s is not None:
            self._relays[node] = Relay(node, self._bridge, *ends, delay_s)

    def address(self, node: str) -> str:
        """Return the IPv4 address at which other nodes reach `node`."""
        return f"{SUBNET}.{self._place(node) + 1}"

    def interface(self, node: str) -> str:
        """Return the name of the network interface inside the node."""
        self._place(node)
        return INSIDE

    def namespace(self, node: str) -> str:
        """Return the path of the node's network namespace, for setns(2); valid as long as the testbed exists."""
        return self._namespaces[self._place(node)]

    def popen(
        self, node: str, argv: Sequence[str], *, env: Mapping[str, str], log: Path, cwd: Path | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a program in the node, with the node's network and cores, and its own /dev/shm and session.

        `env` is the whole environment. Standard output and error overwrite `log`. A program that cannot start exits
        with status 1 and a line in the log.
        """
        namespace = self.namespace(node)
        if cores := self._specs[node].cores:
            argv = launcher("on", ",".join(map(str, cores)), *argv)
        with log.open("wb") as output:
            process = subprocess.Popen(
                launcher("enter", namespace, *argv),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=dict(env),
                cwd=cwd,
                start_new_session=True,
            )
        self._processes.append((node, process))
        return process

    def terminate_all(self) -> None:
        """End every process in all nodes, as on exit; the nodes and their links stay."""
        assert self._holder and self._holder.stdin and self._holder.stdout
        self._holder.stdin.write("\n")
        self._holder.stdin.flush()
        self._holder.stdout.readline()
        self._collect()

    def fault(self) -> str | None:
        """Return a line that names a process of the network itself that has exited early; None if all are running."""
        faults = (relay.fault() for relay in self._relays.values())
        ended = (node for node, senders in self._traffic_of.items() if any(s.poll() is not None for s in senders))
        return next(filter(None, faults), None) or next((f"the traffic at {node} ended" for node in ended), None)

    def set_bandwidth(self, node: str, bandwidth_bps: float | None) -> None:
        """Change the rate of the node's link, both ways, in bits per second; None lifts the limit."""
        check_bandwidth(node, bandwidth_bps)
        ends = (self.namespace(node), INSIDE), (self._bridge, self._port(node))
        was_shaped = self._shaped[node] is not None
        for namespace, interface in ends:
            shape(namespace, interface, bandwidth_bps, 2 * (self._specs[node].delay_s or 0.0), was_shaped=was_shaped)
        self._shaped[node] = bandwidth_bps

    def set_link(self, node: str, *, passes: bool) -> None:
        """Restore or cut the node's link; a cut link silently drops all packets."""
        set_passing(self._bridge, self._port(node), passes=passes)

    def send_signal(self, node: str, number: signal.Signals) -> None:
        """Send a signal to every running program started in the node, and to its children."""
        self._place(node)
        for of, process in self._processes:
            if of == node and process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, number)

    def set_traffic(self, node: str, bits_per_s: float | None) -> None:
        """Load the node's link with other traffic, each way; None stops it. The traffic is datagrams at a steady rate
        to and from the testbed's own node; they share the token buckets' queues, so TCP gets what remains.
        """
        for process in self._traffic_of.pop(node, []):
            _end(process)
        if bits_per_s is None:
            return
        processes = self._traffic_of[node] = []
        for source, target in ((node, PROBE), (PROBE, node)):
            receiver = self._traffic(target, "sink", self.address(target))
            processes.append(receiver)
            arguments = self.address(target), _first_line(receiver), str(bits_per_s)
            processes.append(self._traffic(source, "flood", *arguments))

    def measure(self, node_a: str, node_b: str, seconds: float = 1.5) -> float:
        """Return a TCP connection's payload bits per second from `node_a` to `node_b`, without the first third."""
        receive, send = ("receive", str(seconds * DISCARD_FRACTION)), ("send", str(seconds))
        return float(self._meeting(node_b, receive, node_a, send, seconds + PATIENCE_S, of_server=True) or 0)

    def check(self) -> dict[str, float]:
        """Measure each node that is shaped or `measured`, one by one, in bits per second: {"worker0 up": ..., ...}.

        Each measurement takes about 1.5 s. Raises UserError if a rate differs from the requested one by more than
        TOLERANCE, MOST_CHECKS times in a row.
        """
        achieved = {}
        for node, wanted in self._shaped.items():
            spec = self._specs[node]
            if wanted is None and not spec.measured:
                continue
            seconds = CHECK_S + RAMP_ROUND_TRIPS * 2 * (spec.delay_s or 0.0)
            for way, source, target in (("up", node, PROBE), ("down", PROBE, node)):
                for _ in range(1 if wanted is None else MOST_CHECKS):
                    rate = achieved[f"{node} {way}"] = self.measure(source, target, seconds)
                    right = rate > 0 if wanted is None else abs(rate / wanted - 1) <= TOLERANCE
                    if right:
                        break
                else:
                    if wanted is None:
                        raise UserError(f"bandwidth of {node} {way}: no data arrived; leave the machine idle")
                    rates = f"asked for {wanted / 1e6:g} Mbit/s, got {rate / 1e6:.0f} Mbit/s {way}"
                    raise UserError(f"bandwidth of {node}: {rates}; leave the machine idle, or ask for less")
        return achieved

    def round_trips(self) -> dict[str, float]:
        """Return, by measured node, the median round trip of a small packet to the testbed's own node, in seconds."""
        return {
            node: self._round_trip(node, PROBE)
            for node, spec in self._specs.items()
            if spec.delay_s is not None or self._shaped[node] is not None or spec.measured
        }

    def check_round_trips(self) -> dict[str, float]:
        """Return `round_trips`. Raises UserError if a delayed node's is off by more than TOLERANCE and SLACK_S, or if
        no packet came back.
        """
        achieved = self.round_trips()
        for node, took_s in achieved.items():
            delay_s = self._specs[node].delay_s
            if delay_s is None and took_s == math.inf:
                raise UserError(f"delay of {node}: no packet came back; leave the machine idle")
            wanted_s = 2 * (delay_s or 0.0)
            if delay_s is not None and not wanted_s <= took_s <= wanted_s * (1 + TOLERANCE) + SLACK_S:
                trips = f"asked for a round trip of {wanted_s * 1e3:g} ms, got {took_s * 1e3:.2f} ms"
                raise UserError(f"delay of {node}: {trips}; leave the machine idle")
        return achieved

    def _round_trip(self, source: str, target: str) -> float:
        output = self._meeting(target, ("echo",), source, ("ask", str(ASKED)), PATIENCE_S, of_server=False)
        return float(output or math.inf)

    def _meeting(
        self, target: str, serve: Sequence[str], source: str, call: Sequence[str], limit_s: float, *, of_server: bool
    ) -> str:
        """Run two programs of traffic.py, one of which calls the other, and return the output of the server or the
        caller; empty on timeout.
        """
        address = self.address(target)
        server = self._traffic(target, serve[0], address, *serve[1:])
        try:
            caller = self._traffic(source, call[0], address, _first_line(server), *call[1:])
            try:
                return (server if of_server else caller).communicate(timeout=limit_s)[0]
            except subprocess.TimeoutExpired:
                return ""
            finally:
                _end(caller)
        finally:
            _end(server)

    def _traffic(self, node: str, *arguments: str) -> subprocess.Popen[str]:
        program = [sys.executable, "-I", "-S", str(TRAFFIC), *arguments]
        return subprocess.Popen(
            launcher("enter", self.namespace(node), *program),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    @property
    def _bridge(self) -> str:
        return self._namespaces[-1]

    def _port(self, node: str) -> str:
        return f"{BRIDGE}-{self._place(node)}"

    def _place(self, node: str) -> int:
        if node not in self._places:
            raise UserError(f"no node {node!r} in the testbed; there are {', '.join(self._specs)}")
        return self._places[node]

    def _close(self) -> None:
        holder, self._holder = self._holder, None
        if holder is None:
            return
        for relay in self._relays.values():
            relay.close()
        self._relays.clear()
        assert holder.stdin and holder.stdout and holder.stderr
        holder.stdin.close()  # the holder now ends every process in the nodes and exits
        holder.wait()
        holder.stdout.close()
        holder.stderr.close()
        self._collect()
        self._shaped = dict.fromkeys(self._shaped)

    def _collect(self) -> None:
        for _, process in self._processes:
            _end(process)
        for sender in itertools.chain.from_iterable(self._traffic_of.values()):
            _end(sender)
        self._processes.clear()
        self._traffic_of.clear()


def _first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    return process.stdout.readline().strip()


def _buffer_bytes(nodes: Sequence[NodeSpec]) -> int:
    """Return the maximum size of TCP buffers on these links: that for the two furthest nodes, at the highest rate."""
    furthest = sorted((node.delay_s or 0.0 for node in nodes), reverse=True)[:2]
    rates = [node.bandwidth_bps for node in nodes if node.delay_s]
    return tcp_buffer_bytes(2 * sum(furthest), None if None in rates else max(filter(None, rates), default=0.0))


def _end(process: subprocess.Popen[bytes] | subprocess.Popen[str]) -> None:
    """Kill the process if it is still running, perhaps not yet in its node, and collect its status."""
    process.kill()
    process.wait()
