"""The coordinator's end on the network: a socket, a clock, and the jobs behind them.

Rule of this file: bytes between the socket and connections.py. ZeroMQ's ROUTER brings back connections, queues and fair
turns; a message that is too long ends its connection before it is read, and a worker that does not read what it is
told loses messages, which it asks for again.

What is said is authenticated and not encrypted: sizes, norms and times, beside gradients that travel in the clear.
"""

from __future__ import annotations

import contextlib
import math
import resource
import secrets
import time
from collections.abc import Callable, Mapping
from typing import Any

from prophet.core.errors import UserError
from prophet.core.optional import need
from prophet.mlfabric.connections import Connections, Outgoing, Tenant
from prophet.mlfabric.coordination import Coordination
from prophet.mlfabric.messages import MOST_REQUEST_BYTES, encode
from prophet.mlfabric.terms import Terms

zmq: Any = need("zmq", "an MLfabric coordinator")

MOST_AT_ONCE = 256
"""Messages that are taken in before anything is decided or sent: a flood does not keep others waiting."""
LONGEST_POLL_S = 0.1
"""How soon `stop` is noticed."""


def coordinator(tokens: Mapping[str, str], terms: Terms) -> tuple[Connections, dict[str, Coordination]]:
    """All tenants' jobs, each with these terms, and the connections to them."""
    epoch = secrets.randbits(53)
    jobs = {tenant: Coordination(terms, epoch) for tenant in tokens}
    tenants = {tenant: Tenant(token, jobs[tenant]) for tenant, token in tokens.items()}
    return Connections(tenants, secrets.token_bytes(32)), jobs


class CoordinatorServer:
    """Listens from the start; `serve` answers until `stop`, which any thread may call."""

    def __init__(
        self,
        listen: str,
        connections: Connections,
        clock: Callable[[], float] = time.monotonic,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        """`listen` as ZeroMQ writes it: tcp://HOST:PORT, port 0 for any; `say` is told what a person should know.

        Raises UserError where nothing can listen there.
        """
        _allow_many_files()
        self._connections = connections
        self._clock = clock
        self._say = say
        self._stopped = False
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        for option, value in (
            (zmq.LINGER, 0),
            (zmq.MAXMSGSIZE, MOST_REQUEST_BYTES),
            (zmq.BACKLOG, 4096),
            (zmq.HEARTBEAT_IVL, 1000),
            (zmq.HEARTBEAT_TIMEOUT, 5000),
        ):
            self._socket.setsockopt(option, value)
        try:
            self._socket.bind(listen)
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            advice = "choose another port" if error.errno == zmq.EADDRINUSE else "write HOST:PORT of this machine"
            raise UserError(f"--listen {listen}: {zmq.strerror(error.errno)}; {advice}") from None

    @property
    def address(self) -> str:
        """Where it listens, with the port that it got."""
        address: str = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        return address

    def stop(self) -> None:
        """`serve` returns soon."""
        self._stopped = True

    def serve(self) -> None:
        """Answers until `stop` or KeyboardInterrupt, then closes the socket."""
        connections = self._connections
        try:
            while not self._stopped:
                left_s = min(connections.next_s - self._clock(), LONGEST_POLL_S)
                self._socket.poll(max(0, math.ceil(left_s * 1e3)), zmq.POLLIN)
                for answer in self._received():
                    self._send(answer)
                for answer in connections.turn(self._clock()):
                    self._send(answer)
                for line in connections.notices():
                    self._say(line)
        finally:
            self._context.destroy(linger=0)

    def _received(self) -> list[Outgoing]:
        answers: list[Outgoing] = []
        for _ in range(MOST_AT_ONCE):
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            answers += self._connections.receive(frames[0], b"".join(frames[1:]), self._clock())
        return answers

    def _send(self, outgoing: Outgoing) -> None:
        connection, answer = outgoing
        # One that has gone, or does not read, asks again.
        with contextlib.suppress(zmq.ZMQError):
            self._socket.send_multipart([connection, encode(answer)], zmq.NOBLOCK)


def _allow_many_files() -> None:
    """A connection is a file, and many systems allow 1,024 until asked for more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
