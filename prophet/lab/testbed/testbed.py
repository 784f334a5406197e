"""The testbed: nodes with an address and a bandwidth each, processes inside them, and the rate they really get.

    node 0 -- tbf ==== tbf -- bridge -- tbf ==== tbf -- node 1
             (up)      (down)           ...

Each node is a network namespace joined by a veth pair to a bridge, which has a namespace of its own. A token bucket at
the node's end narrows what it sends, one at the bridge's end what it receives. Namespaces have no names and names
inside them are private, so testbeds do not meet, and what happens to them when the harness ends is told in launch.py.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from prophet.core.errors import UserError

from .namespaces import launcher
from .network import make_bridge, plug_in, require_tools, shape
from .shaping import check_bandwidth

TRAFFIC = Path(__file__).with_name("traffic.py")
SUBNET = "10.77.0"
MAX_NODES = 250
DISCARD_FRACTION = 1 / 3  # of a measurement: the first burst and TCP's slow start
CHECK_S = 1.2
PATIENCE_S = 15.0


@dataclass(frozen=True)
class NodeSpec:
    """One machine: `bandwidth_bps` in bits per second each way, None for a link that is not shaped.

    Its programs run on `cores` alone, which are numbers of this machine's processor cores; on all where there are none.
    """

    name: str
    bandwidth_bps: float | None
    cores: tuple[int, ...] = ()


class Testbed:
    """Nodes on one bridge, while the context lasts.

    As root, or as root of a user namespace (`reexec_in_user_namespace`). On leaving, by whatever way, every process in
    a node gets SIGTERM, then SIGKILL two seconds later, and the namespaces vanish; they also do when this process is
    killed.
    """

    __test__ = False  # to pytest

    def __init__(self, nodes: Sequence[NodeSpec], *, prefix: str = "prophet") -> None:
        """`prefix` (at most 11 characters) begins the names of the interfaces. Raises UserError for bad nodes."""
        names = [node.name for node in nodes]
        if not 1 <= len(names) <= MAX_NODES:
            raise UserError(f"a testbed has 1 to {MAX_NODES} nodes, not {len(names)}")
        if repeated := {name for name in names if names.count(name) > 1}:
            raise UserError(f"node names must differ: {', '.join(sorted(repeated))} is there twice")
        for node in nodes:
            check_bandwidth(node.name, node.bandwidth_bps)
        self._prefix = prefix
        self._places = {name: place for place, name in enumerate(names)}
        # The last node is our own and never shaped: the far end of `check`.
        self._probe = len(names)
        self._wanted = {node.name: node.bandwidth_bps for node in nodes}
        self._cores = {node.name: node.cores for node in nodes}
        self._shaped: dict[str, float | None] = dict.fromkeys(names)
        self._holder: subprocess.Popen[str] | None = None
        self._namespaces: list[str] = []  # paths: one a place, then the bridge's
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        require_tools()
        places = self._probe + 1
        self._holder = subprocess.Popen(
            launcher("hold", str(places + 1)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # a Ctrl-C is for the harness, which then closes the testbed
        )
        try:
            assert self._holder.stdout and self._holder.stderr
            descriptors = self._holder.stdout.readline().split()
            if not descriptors:
                raise UserError(f"no network namespaces: {self._holder.stderr.read().strip()}")
            self._namespaces = [f"/proc/{self._holder.pid}/fd/{descriptor}" for descriptor in descriptors]
            make_bridge(self._bridge, self._prefix)
            for place in range(places):
                namespace, address = self._namespaces[place], _address(place)
                plug_in(self._bridge, self._prefix, self._port(place), namespace, self._inside, address)
            for node, bandwidth_bps in self._wanted.items():
                self.set_bandwidth(node, bandwidth_bps)
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def address(self, node: str) -> str:
        """The IPv4 address that other nodes reach it by."""
        return _address(self._place(node))

    def interface(self, node: str) -> str:
        """The name of its network interface, inside the node."""
        self._place(node)
        return self._inside

    def popen(
        self, node: str, argv: Sequence[str], *, env: Mapping[str, str], log: Path, cwd: Path | None = None
    ) -> subprocess.Popen[bytes]:
        """Starts a program in the node: its network, cores, /dev/shm, and a session (and process group) of its own.

        `env` is its whole environment. Output and errors go to `log`, from its beginning. A program that cannot be
        started exits with a line there and status 1.
        """
        namespace = self._namespaces[self._place(node)]
        if cores := self._cores[node]:
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
        self._processes.append(process)
        return process

    def terminate_all(self) -> None:
        """Ends every process in a node, as on leaving; the nodes stay."""
        assert self._holder and self._holder.stdin and self._holder.stdout
        self._holder.stdin.write("\n")
        self._holder.stdin.flush()
        self._holder.stdout.readline()
        self._collect()

    def set_bandwidth(self, node: str, bandwidth_bps: float | None) -> None:
        """Changes the node's link, both ways, while it is used: bits per second, or None to lift the limit."""
        place = self._place(node)
        check_bandwidth(node, bandwidth_bps)
        was_shaped = self._shaped[node] is not None
        shape(self._namespaces[place], self._inside, bandwidth_bps, was_shaped=was_shaped)
        shape(self._bridge, self._port(place), bandwidth_bps, was_shaped=was_shaped)
        self._shaped[node] = bandwidth_bps

    def measure(self, node_a: str, node_b: str, seconds: float = 1.5) -> float:
        """Bits per second of payload that one TCP connection gets from `node_a` to `node_b`, after the first third."""
        return self._measure(self._place(node_a), self._place(node_b), seconds)

    def check(self, tolerance: float = 0.10) -> dict[str, float]:
        """Measures every shaped node alone, each way, in bits per second: {"worker0 up": ..., "worker0 down": ...}.

        Takes about 1.5 s a measurement. Raises UserError if one differs from what was asked by more than `tolerance`.
        """
        achieved = {}
        for node, wanted in self._shaped.items():
            if wanted is None:
                continue
            place = self._place(node)
            for way, source, target in (("up", place, self._probe), ("down", self._probe, place)):
                rate = achieved[f"{node} {way}"] = self._measure(source, target, CHECK_S)
                if abs(rate / wanted - 1) > tolerance:
                    raise UserError(
                        f"bandwidth of {node}: asked for {wanted / 1e6:g} Mbit/s, got {rate / 1e6:.0f} Mbit/s {way};"
                        " leave the machine idle, or ask for less"
                    )
        return achieved

    def _measure(self, source: int, target: int, seconds: float) -> float:
        address = _address(target)
        receiver = self._traffic(target, "receive", address, str(seconds * DISCARD_FRACTION))
        try:
            assert receiver.stdout
            port = receiver.stdout.readline().strip()
            sender = self._traffic(source, "send", address, port, str(seconds))
            try:
                output, _ = receiver.communicate(timeout=seconds + PATIENCE_S)
            finally:
                _end(sender)
        finally:
            _end(receiver)
        return float(output or 0)

    def _traffic(self, place: int, *arguments: str) -> subprocess.Popen[str]:
        program = [sys.executable, "-I", "-S", str(TRAFFIC), *arguments]
        return subprocess.Popen(
            launcher("enter", self._namespaces[place], *program),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    @property
    def _bridge(self) -> str:
        return self._namespaces[-1]

    @property
    def _inside(self) -> str:
        return f"{self._prefix}0"

    def _port(self, place: int) -> str:
        return f"{self._prefix}-{place}"

    def _place(self, node: str) -> int:
        if node not in self._places:
            raise UserError(f"no node {node!r} in the testbed; there are {', '.join(self._places)}")
        return self._places[node]

    def _close(self) -> None:
        holder, self._holder = self._holder, None
        if holder is None:
            return
        assert holder.stdin and holder.stdout and holder.stderr
        holder.stdin.close()  # it now ends every process in the nodes, and itself
        holder.wait()
        holder.stdout.close()
        holder.stderr.close()
        self._collect()
        self._shaped = dict.fromkeys(self._shaped)

    def _collect(self) -> None:
        for process in self._processes:
            _end(process)
        self._processes.clear()


def _address(place: int) -> str:
    return f"{SUBNET}.{place + 1}"


def _end(process: subprocess.Popen[bytes] | subprocess.Popen[str]) -> None:
    """Kills it if it is still there, as one that had yet to enter its node; collects its status."""
    process.kill()
    process.wait()
