"""Connections from untrusted peers, all on one thread, with limits on their number, duration and memory.

Rule of this file: sockets, bytes and deadlines. A connection's owner handles the data.

A connection is a stranger until its owner admits it. The number of strangers is limited. A new one replaces the oldest,
so idle strangers keep nobody out. A stranger has a fixed total time, no matter what it sends. Unread and unsent bytes
of each connection are limited; beyond the limit it is closed. See docs/decisions/strangers-on-a-port.md.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import math
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

READ_BYTES = 1 << 20
"""Maximum bytes read from one connection before others get their turn."""
ACCEPTED_AT_ONCE = 16
"""Maximum number of connections accepted before others get their turn."""
NO_FILES_S = 1.0
"""Seconds for which the hub accepts nobody if no file descriptor is left."""
LONGEST_WAIT_S = 3600.0
"""Maximum wait in seconds, since selectors have a limit."""
_NONE_LEFT = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


def _nothing(connection: Connection) -> None:
    pass


@dataclass(frozen=True)
class Owner:
    """Callbacks of a connection, called when it is made, when bytes have arrived, and when it is closed.

    `most_bytes` limits the bytes kept for a stranger, in each direction.
    """

    most_bytes: int
    made: Callable[[Connection], None] = _nothing
    received: Callable[[Connection], None] = _nothing
    closed: Callable[[Connection], None] = _nothing


class Connection:
    """One connection of a hub. Only the hub's thread may use it."""

    def __init__(self, hub: Hub, own: socket.socket, owner: Owner, since_s: float) -> None:
        self._hub = hub
        self.socket = own
        self.owner = owner
        self.since_s = since_s
        """Time at which the connection was made."""
        self.received = bytearray()
        """Received bytes. Their reader removes those that it has handled."""
        self.most_received = self.most_unsent = owner.most_bytes
        self._unsent: deque[memoryview] = deque()
        self._unsent_bytes = 0
        self._ends = self._heard_all = False
        self.open = True

    def admit(self, most_received: int, most_unsent: int) -> None:
        """Admit the connection: it is no longer a stranger."""
        self.most_received, self.most_unsent = most_received, most_unsent
        self._hub.admitted(self)

    def send(self, data: bytes) -> None:
        """Send bytes. If too many would be unsent, the peer does not read, and the connection is closed."""
        if self._unsent and self._unsent_bytes + len(data) > self.most_unsent:
            self.close()
        elif self.open and data:
            self._unsent.append(memoryview(data))
            self._unsent_bytes += len(data)
            self.flush()

    def end(self) -> None:
        """Send nothing more, ignore further input, and close once the peer has read everything and closed its end.

        Closing earlier, with unread input, could lose the bytes sent last.
        """
        self._ends = True
        self.flush()

    def close(self) -> None:
        """Close the connection now."""
        if self.open:
            self.release().close()

    def release(self) -> socket.socket:
        """Remove the connection from the hub and return its socket, which is non-blocking."""
        self.open = False
        self._unsent.clear()
        self._hub.released(self)
        self.owner.closed(self)
        return self.socket

    def flush(self) -> None:
        """Send what can be sent now."""
        try:
            while self._unsent:
                first = self._unsent[0]
                sent = self.socket.send(first)
                self._unsent_bytes -= sent
                if sent == len(first):
                    self._unsent.popleft()
                else:
                    self._unsent[0] = first[sent:]
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            self.close()
        if not self.open:
            return
        if not self._unsent and self._heard_all:
            self.close()
        elif not self._unsent and self._ends:
            with contextlib.suppress(OSError):  # the peer is gone
                self.socket.shutdown(socket.SHUT_WR)
        if self.open:
            self._hub.waits(self, not self._heard_all, bool(self._unsent))

    def read(self) -> None:
        """Receive the bytes that have arrived, and pass them to the owner."""
        try:
            data = self.socket.recv(min(self.most_received - len(self.received), READ_BYTES))
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self.close()
            return
        if not data:
            self._heard_all = True
            self.flush()
        elif not self._ends:
            self.received += data
            self.owner.received(self)
            if not self._ends and len(self.received) >= self.most_received:
                self.close()
        if self._ends:
            self.received.clear()


def listener_at(host: str, port: int) -> socket.socket:
    """Return a listener. Port 0 means any free port. Raises OSError with only the system's message."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=socket.SOMAXCONN)
    except OSError as error:
        raise OSError(error.errno, (error.strerror or "").partition(" (while ")[0]) from None


def lives_or_ends(own: socket.socket) -> None:
    """Set a socket to send small messages at once, and to detect within 5 s if the other machine is gone."""
    options = (socket.TCP_NODELAY, 1), (socket.TCP_KEEPIDLE, 1), (socket.TCP_KEEPINTVL, 1), (socket.TCP_KEEPCNT, 5)
    with contextlib.suppress(OSError):  # already closed, as its next use will show
        for option, value in (*options, (socket.TCP_USER_TIMEOUT, 5000)):
            own.setsockopt(socket.IPPROTO_TCP, option, value)
        own.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


class Hub:
    """All connections of one thread, which calls `turn` in a loop. Times are seconds."""

    def __init__(
        self,
        most_strangers: int,
        stranger_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Close strangers after `stranger_s`."""
        self._most_strangers = most_strangers
        self._clock = clock
        self._selector = selectors.DefaultSelector()
        self._stranger_s = stranger_s
        self._strangers: dict[Connection, None] = {}
        """Strangers, the oldest first."""
        self._admitted: set[Connection] = set()
        self._listeners: dict[socket.socket, Owner] = {}
        self._paused_until_s: float | None = None
        self._wake, self._woken = socket.socketpair()
        for end in (self._wake, self._woken):
            end.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ)

    def __len__(self) -> int:
        return len(self._strangers) + len(self._admitted)

    def listen(self, listener: socket.socket, owner: Owner) -> None:
        """Accept connections to `listener` from now on. The hub closes it at the end."""
        listener.setblocking(False)
        self._listeners[listener] = owner
        self._selector.register(listener, selectors.EVENT_READ)

    def adopt(self, own: socket.socket, owner: Owner) -> Connection:
        """Add a connection that was made elsewhere."""
        own.setblocking(False)
        connection = Connection(self, own, owner, self._clock())
        self._strangers[connection] = None
        self._selector.register(own, selectors.EVENT_READ, connection)
        owner.made(connection)
        return connection

    def wake(self) -> None:
        """Wake a waiting `turn`. May be called from any thread, even after the hub was closed."""
        # If the buffer is full, a wake-up is already pending.
        with contextlib.suppress(OSError):
            self._wake.send(b"\0")

    def turn(self, until_s: float) -> None:
        """Wait for bytes or connections, at most until `until_s`, and handle all that have arrived."""
        now_s = self._clock()
        if self._paused_until_s is not None and now_s >= self._paused_until_s:
            self._paused_until_s = None
            for listener in self._listeners:
                self._selector.register(listener, selectors.EVENT_READ)
        for key, events in self._selector.select(self._timeout_s(until_s, now_s)):
            if isinstance(key.data, Connection):
                # An earlier event may have closed it.
                if events & selectors.EVENT_WRITE and key.data.open:
                    key.data.flush()
                if events & selectors.EVENT_READ and key.data.open:
                    key.data.read()
            elif key.fileobj is self._woken:
                with contextlib.suppress(OSError):
                    self._woken.recv(4096)
            elif isinstance(key.fileobj, socket.socket):
                self._accept(key.fileobj)
        now_s = self._clock()
        while self._strangers and (first := next(iter(self._strangers))).since_s + self._stranger_s <= now_s:
            first.close()

    def close(self) -> None:
        """Close everything without calling owners."""
        for connection in (*self._strangers, *self._admitted):
            connection.open = False
            connection.socket.close()
        for own in (*self._listeners, self._wake, self._woken):
            own.close()
        self._selector.close()

    def _timeout_s(self, until_s: float, now_s: float) -> float | None:
        ends_s = [until_s, math.inf if self._paused_until_s is None else self._paused_until_s]
        ends_s += [first.since_s + self._stranger_s for first in itertools.islice(self._strangers, 1)]
        left_s = min(ends_s) - now_s
        if left_s > LONGEST_WAIT_S:
            return None if left_s == math.inf else LONGEST_WAIT_S
        # A selector waits for whole milliseconds and rounds up, so sleep for a shorter wait.
        if 0.0 < left_s < 1e-3:
            time.sleep(left_s)
        return math.floor(max(0.0, left_s) * 1e3) / 1e3

    def _accept(self, listener: socket.socket) -> None:
        for place in range(ACCEPTED_AT_ONCE):
            try:
                own, _ = listener.accept()
            except OSError as error:
                # Linux reports this even if no client is waiting. But at the first accept, one was.
                if place == 0 and error.errno in _NONE_LEFT:
                    self._without_files()
                return  # no client is waiting, or one has disconnected again
            if len(self._strangers) >= self._most_strangers:
                next(iter(self._strangers)).close()
            self.adopt(own, self._listeners[listener])

    def _without_files(self) -> None:
        """Close a stranger to free a file descriptor. Without strangers, accept nobody for a while."""
        if self._strangers:
            next(iter(self._strangers)).close()
        elif self._paused_until_s is None:
            self._paused_until_s = self._clock() + NO_FILES_S
            for listener in self._listeners:
                self._selector.unregister(listener)

    # Calls of connections.

    def admitted(self, connection: Connection) -> None:
        """Record that a connection is admitted."""
        if connection.open:
            self._strangers.pop(connection, None)
            self._admitted.add(connection)

    def released(self, connection: Connection) -> None:
        """Remove a connection from this hub."""
        self._strangers.pop(connection, None)
        self._admitted.discard(connection)
        self._selector.unregister(connection.socket)

    def waits(self, connection: Connection, reads: bool, writes: bool) -> None:
        """Record whether a connection reads, and whether it has bytes to send. At least one must be true."""
        events = selectors.EVENT_READ * reads | selectors.EVENT_WRITE * writes
        if self._selector.get_key(connection.socket).events != events:
            self._selector.modify(connection.socket, events, connection)
