"""The coordinator's end on the network: a socket, a clock, and the jobs behind them.

Rule of this file: bytes between connections of a hub (hub.py) and connections.py. Whoever has not proved that
it has a tenant's token is a stranger: its connection has STRANGER_S in all, keeps one message, and gives way where
there are MOST_STRANGERS. A worker that does not read what it is told is disconnected, and asks again.

What is said is authenticated and not encrypted: sizes, norms and times, beside gradients that travel in the clear.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import resource
import secrets
import socket
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from urllib.parse import urlsplit

from prophet_mlfabric.connections import Connections, Outgoing, Tenant
from prophet_mlfabric.coordination import Coordination
from prophet_mlfabric.messages import LENGTH_BYTES, MOST_ANSWER_BYTES, MOST_REQUEST_BYTES, framed, take_frames
from prophet_mlfabric.terms import Terms
from prophet_scheduler.core.errors import UserError
from prophet_scheduler.hub import Connection, Hub, Owner, listener_at, lives_or_ends

STRANGER_S = 10.0
"""Longest seconds from a connection to the proof, and of silence after it: workers speak once a second."""
MOST_STRANGERS = 256
FILES_OF_OWN = 32
"""Descriptors that are no connections."""
LONGEST_WAIT_S = 0.1
"""Seconds until `stop` is noticed, and Ctrl-C."""

logger = logging.getLogger("prophet_scheduler")


def coordinator(tokens: Mapping[str, str], terms: Terms) -> tuple[Connections, dict[str, Coordination]]:
    """Return the connections of all tenants, and their jobs with these terms. No tenant can take the others' files."""
    epoch = secrets.randbits(52)  # it is counted up
    share = (_most_files() - MOST_STRANGERS - FILES_OF_OWN) // len(tokens)
    terms = replace(terms, most_workers=max(1, min(terms.most_workers, share)))
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
        stranger_s: float = STRANGER_S,
    ) -> None:
        """`listen` is tcp://HOST:PORT, port 0 for any; `say` is told what a person should know.

        Raises UserError where nothing can listen there.
        """
        self._connections = connections
        self._clock = clock
        self._say = say
        self._stopped = False
        self._numbers = 0
        self._by_name: dict[bytes, Connection] = {}
        self._names: dict[Connection, bytes] = {}
        self._listener = _listener(listen)
        self._hub = Hub(MOST_STRANGERS, stranger_s, STRANGER_S)
        owner = Owner(LENGTH_BYTES + MOST_REQUEST_BYTES, self._made, self._received, self._closed)
        self._hub.listen(self._listener, owner)

    @property
    def address(self) -> str:
        """Address where it listens, with the port that it got."""
        host, port = self._listener.getsockname()[:2]
        return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"

    def stop(self) -> None:
        """`serve` returns soon."""
        self._stopped = True
        self._hub.wake()

    def serve(self) -> None:
        """Answers until `stop` or KeyboardInterrupt, then closes the socket."""
        connections = self._connections
        try:
            while not self._stopped:
                left_s = min(connections.next_s - self._clock(), LONGEST_WAIT_S)
                self._hub.turn(time.monotonic() + left_s)
                self._send(connections.turn(self._clock()))
                for line in connections.notices():
                    self._say(line)
        finally:
            self._hub.close()

    def _made(self, connection: Connection) -> None:
        lives_or_ends(connection.socket)
        self._numbers += 1
        name = self._names[connection] = b"%d" % self._numbers
        self._by_name[name] = connection

    def _received(self, connection: Connection) -> None:
        name = self._names[connection]
        try:
            for data in take_frames(connection.received, MOST_REQUEST_BYTES):
                self._send(self._connections.receive(name, data, self._clock()))
                if not connection.open:
                    return
                if self._connections.knows(name):
                    connection.admit(LENGTH_BYTES + MOST_REQUEST_BYTES, MOST_ANSWER_BYTES)
        except UserError as error:
            logger.debug("a connection is closed: %s", error)
            connection.close()

    def _closed(self, connection: Connection) -> None:
        name = self._names.pop(connection)
        del self._by_name[name]
        self._connections.closed(name)

    def _send(self, outgoing: Iterable[Outgoing]) -> None:
        for name, answer in outgoing:
            connection = self._by_name.get(name)
            if connection is not None and answer is None:
                connection.close()
            elif connection is not None and answer is not None:
                connection.send(framed(answer))


def _listener(address: str) -> socket.socket:
    place = urlsplit(address)
    try:
        return listener_at(place.hostname or "", place.port or 0)
    except OSError as error:
        advice = "choose another port" if error.errno == errno.EADDRINUSE else "write HOST:PORT of this machine"
        raise UserError(f"--listen {address}: {error.strerror}; {advice}") from None


def _most_files() -> int:
    """Return the largest number of connections. Each is a file, and many systems allow 1,024 until asked for more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft
