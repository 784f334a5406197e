"""The coordinator's end on the network: a socket, a clock, and the jobs behind them.

Rule of this file: bytes between connections of a hub (hub.py) and connections.py. A connection that has not proved a
tenant's token is a stranger: it lasts STRANGER_S, keeps one message, and is dropped first if there are MOST_STRANGERS.
A worker that does not read its answers is disconnected, and asks again.

Messages are authenticated, not encrypted: they hold sizes, norms and times, and gradients are sent unencrypted anyway.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import resource
import secrets
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from prophet_mlfabric.connections import Connections, Outgoing
from prophet_mlfabric.coordination import Coordination, Terms
from prophet_mlfabric.messages import LENGTH_BYTES, MOST_ANSWER_BYTES, MOST_REQUEST_BYTES, framed, take_frames
from prophet_mlfabric.settings import host_and_port
from prophet_scheduler.core.errors import UserError
from prophet_scheduler.hub import Connection, Hub, Owner, listener_at, lives_or_ends

STRANGER_S = 10.0
"""Maximum seconds from a connection to its proof."""
MOST_STRANGERS = 256
FILES_OF_OWN = 32
"""File descriptors reserved for uses other than connections."""
LONGEST_WAIT_S = 0.1
"""Maximum seconds until `stop` or Ctrl-C is noticed."""

logger = logging.getLogger("prophet_scheduler")


def coordinator(tokens: Mapping[str, str], terms: Terms) -> Connections[Connection]:
    """Return the connections of all tenants' jobs with these terms. No tenant can use up the others' descriptors."""
    epoch = secrets.randbits(52)  # leaves room to count up
    share = (_most_files() - MOST_STRANGERS - FILES_OF_OWN) // len(tokens)
    terms = replace(terms, most_workers=max(1, min(terms.most_workers, share)))
    return Connections(tokens, {tenant: Coordination(terms, epoch) for tenant in tokens})


class CoordinatorServer:
    """Listens from construction on; `serve` answers until `stop`, which any thread may call."""

    def __init__(
        self,
        listen: str,
        connections: Connections[Connection],
        say: Callable[[str], None] = lambda line: None,
        stranger_s: float = STRANGER_S,
    ) -> None:
        """`listen` is HOST:PORT, port 0 for any; `say` gets lines for the operator.

        Raises UserError if it cannot listen there.
        """
        self._connections, self._say = connections, say
        self._stopped = False
        try:
            self._listener = listener_at(*host_and_port(listen, "--listen", 0))
        except OSError as error:
            advice = "choose another port" if error.errno == errno.EADDRINUSE else "write HOST:PORT of this machine"
            raise UserError(f"--listen {listen}: {error.strerror}; {advice}") from None
        self._hub = Hub(MOST_STRANGERS, stranger_s)
        most = LENGTH_BYTES + MOST_REQUEST_BYTES
        owner = Owner(most, lambda made: lives_or_ends(made.socket), self._received, connections.closed)
        self._hub.listen(self._listener, owner)

    @property
    def address(self) -> str:
        """Address on which it listens, with its actual port."""
        host, port = self._listener.getsockname()[:2]
        return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"

    def stop(self) -> None:
        """Make `serve` return soon."""
        self._stopped = True
        self._hub.wake()

    def serve(self) -> None:
        """Answer until `stop` or KeyboardInterrupt, then close the socket."""
        connections = self._connections
        try:
            while not self._stopped:
                left_s = min(connections.next_s - time.monotonic(), LONGEST_WAIT_S)
                self._hub.turn(time.monotonic() + left_s)
                _send(connections.turn(time.monotonic()))
                for line in connections.notices():
                    self._say(line)
        finally:
            self._hub.close()

    def _received(self, connection: Connection) -> None:
        try:
            for data in take_frames(connection.received, MOST_REQUEST_BYTES):
                _send(self._connections.receive(connection, data, time.monotonic()))
                if not connection.open:
                    return
                if self._connections.knows(connection):
                    connection.admit(LENGTH_BYTES + MOST_REQUEST_BYTES, MOST_ANSWER_BYTES)
        except UserError as error:
            logger.debug("a connection is closed: %s", error)
            connection.close()


def _send(outgoing: Iterable[Outgoing[Connection]]) -> None:
    for connection, answer in outgoing:
        if answer is None:
            connection.close()
        else:
            connection.send(framed(answer))


def _most_files() -> int:
    """Raise the limit of open files as far as allowed, and return it. Many systems start processes with 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft
