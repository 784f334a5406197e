"""Connections from anybody, all on one thread, with limits on their number, duration and memory.

Rule of this file: sockets, bytes and deadlines. A connection's owner handles what is sent over it.

A connection is a stranger's until its owner admits it. The number of strangers is limited: one more replaces the
oldest, so idle strangers keep nobody out. A stranger has a fixed time in all, whatever it sends. An admitted connection
lasts as long as bytes come. Unread and unsent bytes of each connection are limited; beyond the limit it is closed. See
docs/decisions/strangers-on-a-port.md.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

READ_BYTES = 1 << 20
"""Maximum bytes read from one connection before others have their turn."""
ACCEPTED_AT_ONCE = 16
"""Maximum connections accepted before others have their turn."""
NO_FILES_S = 1.0
"""Seconds without accepting anybody if no descriptor is left."""
LONGEST_WAIT_S = 3600.0
"""Maximum wait, since a selector has a limit."""
_NONE_LEFT = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


def _nothing(connection: Connection) -> None:
    pass


@dataclass(frozen=True)
class Owner:
    """Callbacks of a connection: when it is made, when bytes have come, and when it is closed.

    `most_bytes` of a stranger are kept each way.
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
        """Time at which it was made; once it is admitted, at which bytes last came."""
        self.received = bytearray()
        """Bytes that are not handled yet; their reader deletes them here."""
        self.most_received = self.most_unsent = owner.most_bytes
        self._unsent: deque[memoryview] = deque()
        self._unsent_bytes = 0
        self._ends = self._heard_all = False
        self.open = True

    def admit(self, most_received: int, most_unsent: int) -> None:
        """Admit the connection: it is no stranger's any more."""
        self.most_received, self.most_unsent = most_received, most_unsent
        self._hub.admitted(self)

    def send(self, data: bytes) -> None:
        """Send bytes. If too many are unsent already, the other end does not read, and the connection is closed."""
        if self._unsent and self._unsent_bytes + len(data) > self.most_unsent:
            self.close()
        elif self.open and data:
            self._unsent.append(memoryview(data))
            self._unsent_bytes += len(data)
            self.flush()

    def end(self) -> None:
        """Send nothing more and ignore what comes; close when the other end has read everything and closes.

        A connection that is closed earlier, over unread bytes, may lose the bytes sent last.
        """
        self._ends = True
        self.flush()

    def close(self) -> None:
        """Close it now."""
        if self.open:
            self.release().close()

    def release(self) -> socket.socket:
        """Take it out of the hub and return its socket, which does not block."""
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
            with contextlib.suppress(OSError):  # the other end has gone
                self.socket.shutdown(socket.SHUT_WR)
        if self.open:
            self._hub.waits(self, not self._heard_all, bool(self._unsent))

    def read(self) -> None:
        """Receive what has come, and hand it to the owner."""
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
    """Return a listener, port 0 for any. Raises OSError with the system's words alone."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=socket.SOMAXCONN)
    except socket.gaierror:
        raise
    except OSError as error:
        raise OSError(error.errno, os.strerror(error.errno or 0)) from None


def lives_or_ends(own: socket.socket) -> None:
    """Send small messages at once, and notice within 5 s if the other machine has gone."""
    options = (socket.TCP_NODELAY, 1), (socket.TCP_KEEPIDLE, 1), (socket.TCP_KEEPINTVL, 1), (socket.TCP_KEEPCNT, 5)
    with contextlib.suppress(OSError):  # it is closed already, as its next use will show
        for option, value in (*options, (socket.TCP_USER_TIMEOUT, 5000)):
            own.setsockopt(socket.IPPROTO_TCP, option, value)
        own.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


class Hub:
    """All connections of one thread, which calls `turn` again and again. Times in seconds."""

    def __init__(
        self,
        most_strangers: int,
        stranger_s: float,
        silent_s: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """A stranger has `stranger_s` in all; an admitted connection is closed after `silent_s` of silence."""
        self._most_strangers = most_strangers
        self._clock = clock
        self._selector = selectors.DefaultSelector()
        # Each in the order in which its time ends.
        self._strangers: dict[Connection, None] = {}
        self._admitted: dict[Connection, None] = {}
        self._limits = ((self._strangers, stranger_s), (self._admitted, silent_s))
        self._listeners: dict[socket.socket, Owner] = {}
        self._paused_until_s: float | None = None
        self._wake, self._woken = socket.socketpair()
        for end in (self._wake, self._woken):
            end.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ)

    def __len__(self) -> int:
        return len(self._strangers) + len(self._admitted)

    def listen(self, listener: socket.socket, owner: Owner) -> None:
        """Accept connections to `listener` from now on; it is closed with the hub."""
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
        """Wake a waiting `turn`. From any thread, also after the hub was closed."""
        # With a full buffer it is awake already.
        with contextlib.suppress(OSError):
            self._wake.send(b"\0")

    def turn(self, until_s: float) -> None:
        """Wait for bytes or connections, at most until `until_s`, and handle all that have come."""
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
        for connections, limit_s in self._limits:
            while connections and (first := next(iter(connections))).since_s + limit_s <= now_s:
                first.close()

    def close(self) -> None:
        """Close everything without a word to owners."""
        for connection in (*self._strangers, *self._admitted):
            connection.open = False
            connection.socket.close()
        for own in (*self._listeners, self._wake, self._woken):
            own.close()
        self._selector.close()

    def _timeout_s(self, until_s: float, now_s: float) -> float | None:
        ends_s = [next(iter(connections)).since_s + limit_s for connections, limit_s in self._limits if connections]
        ends_s += [until_s, math.inf if self._paused_until_s is None else self._paused_until_s]
        left_s = min(ends_s) - now_s
        if left_s > LONGEST_WAIT_S:
            return None if left_s == math.inf else LONGEST_WAIT_S
        # A selector waits for whole milliseconds and rounds up: a shorter wait is slept.
        if 0.0 < left_s < 1e-3:
            time.sleep(left_s)
        return math.floor(max(0.0, left_s) * 1e3) / 1e3

    def _accept(self, listener: socket.socket) -> None:
        for place in range(ACCEPTED_AT_ONCE):
            try:
                own, _ = listener.accept()
            except OSError as error:
                # Linux reports this also if nobody waits; the first time somebody did.
                if place == 0 and error.errno in _NONE_LEFT:
                    self._without_files()
                return  # nobody waits, or somebody has gone again
            if len(self._strangers) >= self._most_strangers:
                next(iter(self._strangers)).close()
            self.adopt(own, self._listeners[listener])

    def _without_files(self) -> None:
        """Close a stranger to free a descriptor. Without strangers, accept nobody for a while."""
        if self._strangers:
            next(iter(self._strangers)).close()
        elif self._paused_until_s is None:
            self._paused_until_s = self._clock() + NO_FILES_S
            for listener in self._listeners:
                self._selector.unregister(listener)

    # Calls of connections.

    def admitted(self, connection: Connection) -> None:
        """Note a connection as admitted, and as the last one that spoke."""
        if not connection.open:
            return
        self._strangers.pop(connection, None)
        self._admitted.pop(connection, None)
        connection.since_s = self._clock()
        self._admitted[connection] = None

    def released(self, connection: Connection) -> None:
        """Take a connection out of this hub."""
        self._strangers.pop(connection, None)
        self._admitted.pop(connection, None)
        self._selector.unregister(connection.socket)

    def waits(self, connection: Connection, reads: bool, writes: bool) -> None:
        """Note if a connection reads and if it has something to send; one of both is true."""
        events = selectors.EVENT_READ * reads | selectors.EVENT_WRITE * writes
        if self._selector.get_key(connection.socket).events != events:
            self._selector.modify(connection.socket, events, connection)
