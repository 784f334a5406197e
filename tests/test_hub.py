"""Connections that anybody may make: how many, for how long, and how much is kept of each. The time is the test's."""

from __future__ import annotations

import errno
import math
import socket
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prophet_scheduler.hub import NO_FILES_S, Connection, Hub, Owner, listener_at

MOST = 3
"""Largest number of strangers."""
STRANGER_S = 10.0
BYTES = 64
LONG_S = 60.0
"""Longer than anything here takes."""


class Hosting:
    """Hub with clients. A client that says `admit` is admitted; what it says is kept until it says `take`."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.hub = Hub(MOST, STRANGER_S, lambda: self.now_s)
        self.listener = listener_at("127.0.0.1", 0)
        self.made: list[Connection] = []
        self.closed: list[Connection] = []
        self.hub.listen(self.listener, Owner(BYTES, self.made.append, self.received, self.closed.append))
        self.clients: list[socket.socket] = []

    def received(self, connection: Connection) -> None:
        if b"admit" in connection.received:
            connection.admit(2 * BYTES, 2 * BYTES)
        if b"take" in connection.received or b"admit" in connection.received:
            connection.received.clear()

    def turn(self) -> None:
        """Handle all that has come by now, which on the loopback is all that was sent."""
        for _ in range(3):
            self.hub.turn(self.now_s)

    def connect(self) -> socket.socket:
        client = socket.create_connection(self.listener.getsockname()[:2], LONG_S)
        self.clients.append(client)
        self.turn()
        return client

    def say(self, client: socket.socket, data: bytes) -> None:
        client.sendall(data)
        self.turn()

    def close(self) -> None:
        for client in self.clients:
            client.close()
        self.hub.close()


@pytest.fixture
def host() -> Iterator[Hosting]:
    hosting = Hosting()
    yield hosting
    hosting.close()


def over(client: socket.socket) -> bool:
    """Return True if the other end has closed the connection."""
    client.setblocking(False)
    try:
        return client.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def test_new_stranger_replaces_oldest(host: Hosting) -> None:
    member = host.connect()
    host.say(member, b"admit")
    clients = [host.connect() for _ in range(4 * MOST)]
    assert [over(client) for client in clients] == [True] * 3 * MOST + [False] * MOST
    assert not over(member) and len(host.hub) == MOST + 1


def test_stranger_has_a_fixed_time(host: Hosting) -> None:
    client = host.connect()
    for _ in range(9):
        host.now_s += STRANGER_S / 10
        host.say(client, b".")
    assert not over(client)
    host.now_s += STRANGER_S / 10
    host.turn()
    assert over(client) and len(host.hub) == 0


def test_bytes_of_a_stranger_are_limited(host: Hosting) -> None:
    client = host.connect()
    host.say(client, b"x" * (BYTES - 1))
    assert len(host.made[0].received) == BYTES - 1
    host.say(client, b"x" * 10 * BYTES)
    assert over(client) and len(host.hub) == 0


def test_handled_bytes_do_not_count(host: Hosting) -> None:
    client = host.connect()
    for _ in range(100):
        host.say(client, b"take")
    assert not over(client)


def test_peer_that_does_not_read_is_disconnected(host: Hosting) -> None:
    client = host.connect()
    connection = host.made[0]
    sent = 0
    while connection.open:
        connection.send(b"x" * 4096)
        sent += 4096
        assert sent < 1 << 26, "no buffer of the system holds so much"
    assert len(host.hub) == 0
    client.close()


def test_end_sends_everything_first(host: Hosting) -> None:
    client = host.connect()
    connection = host.made[0]
    size = 1 << 23  # more than the system holds
    connection.send(b"x" * size)
    connection.end()
    client.shutdown(socket.SHUT_WR)
    client.setblocking(False)
    read = 0
    while read < size:
        host.turn()
        try:
            read += len(client.recv(1 << 16))
        except BlockingIOError:
            continue
    host.turn()
    assert len(host.hub) == 0


def test_input_after_end_is_ignored(host: Hosting) -> None:
    client = host.connect()
    connection = host.made[0]
    connection.send(b"answer")
    connection.end()
    for _ in range(10):
        host.say(client, b"x" * BYTES)
        assert len(connection.received) == 0
    assert client.recv(100) == b"answer" and client.recv(100) == b""
    host.now_s += STRANGER_S
    host.turn()
    assert len(host.hub) == 0


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM])
def test_hub_pauses_without_descriptors(host: Hosting, error: int, monkeypatch: pytest.MonkeyPatch) -> None:
    member = host.connect()
    host.say(member, b"admit")
    tries = []

    def none_left(listener: socket.socket) -> None:
        tries.append(listener)
        raise OSError(error, "none")

    with monkeypatch.context() as without:
        without.setattr(socket.socket, "accept", none_left)
        host.connect()
        for _ in range(100):
            host.turn()
        assert len(tries) == 1
        host.now_s += NO_FILES_S
        host.turn()
        assert len(tries) == 2
        host.say(member, b"admit")
        assert not over(member), "the others are served"
    host.now_s += NO_FILES_S
    host.turn()
    assert len(host.made) == 2, "and it is its turn when there are some again"


def test_stranger_gives_way_without_descriptors(host: Hosting, monkeypatch: pytest.MonkeyPatch) -> None:
    first = host.connect()
    accept = socket.socket.accept

    def none_left(listener: socket.socket) -> object:
        if len(host.hub):
            raise OSError(errno.EMFILE, "none")
        return accept(listener)

    monkeypatch.setattr(socket.socket, "accept", none_left)
    second = host.connect()
    assert over(first) and not over(second)


def test_far_deadline(host: Hosting) -> None:
    host.hub.wake()
    host.hub.turn(1e308)
    host.hub.wake()
    host.hub.turn(math.inf)


def test_wake_ends_a_turn() -> None:
    hub = Hub(1, math.inf)
    began = time.monotonic()
    hub.wake()
    hub.turn(began + LONG_S)
    assert time.monotonic() - began < LONG_S
    hub.close()
    hub.wake()


ACTS = st.sampled_from(["connect", "admit", "say", "much", "close", "shut", "reset", "time", "answer", "end"])


@given(st.lists(st.tuples(ACTS, st.integers(0, 5)), max_size=25))
def test_everything_is_bounded(acts: list[tuple[str, int]]) -> None:
    host = Hosting()
    try:
        for act, which in acts:
            client = host.clients[which] if which < len(host.clients) else None
            ours = host.made[which] if which < len(host.made) else None
            try:
                match act:
                    case "connect":
                        host.connect()
                    case "time":
                        host.now_s += which
                        host.turn()
                    case "answer" if ours and ours.open:
                        ours.send(b"y" * BYTES)
                    case "end" if ours and ours.open:
                        ours.end()
                    case "admit" | "say" | "much" if client:
                        host.say(client, {"admit": b"admit", "say": b"x" * which, "much": b"x" * 3 * BYTES}[act])
                    case "close" if client:
                        client.close()
                    case "shut" if client:
                        client.shutdown(socket.SHUT_WR)
                    case "reset" if client:
                        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                        client.close()
            except OSError:
                pass  # it is closed
            host.turn()
            known = [connection for connection in host.made if connection.open]
            assert len(known) == len(host.hub)
            assert sum(connection in host.hub._strangers for connection in known) <= MOST
            assert all(len(connection.received) < connection.most_received for connection in known)
        assert sorted(map(id, host.closed)) == sorted(id(each) for each in host.made if not each.open)
        host.now_s += STRANGER_S
        host.turn()
        assert not host.hub._strangers
    finally:
        host.close()


def test_host_without_address(monkeypatch: pytest.MonkeyPatch) -> None:
    def create_server(*_: object, **__: object) -> socket.socket:
        # As Python's: it makes an OSError of every error, and adds words.
        raise OSError(socket.EAI_NONAME, "Name or service not known (while attempting to bind on address ('x', 1))")

    monkeypatch.setattr(socket, "create_server", create_server)
    with pytest.raises(OSError) as caught:
        listener_at("x", 1)
    assert caught.value.strerror == "Name or service not known"
