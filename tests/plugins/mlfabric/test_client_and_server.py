"""Server and client over real sockets on this machine."""

from __future__ import annotations

import contextlib
import logging
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from prophet_mlfabric import client as client_module
from prophet_mlfabric import messages as msg
from prophet_mlfabric import server as server_module
from prophet_mlfabric.client import CoordinatorClient
from prophet_mlfabric.coordination import Coordination, Terms
from prophet_mlfabric.server import CoordinatorServer, coordinator
from prophet_mlfabric.settings import CoordinatorSettings, coordinator_from_environ
from prophet_scheduler.core.errors import UserError
from prophet_scheduler.hub import listener_at

TOKEN = "a token of the tests"
LONG_S = 60.0
"""Time limit for anything here."""
BOUND_S = 12.0
"""Longer than a busy machine may freeze."""


class Running:
    """A server in a thread."""

    def __init__(
        self,
        listen: str = "tcp://127.0.0.1:0",
        divergence_bound: float | None = None,
        stranger_s: float = LONG_S,
    ) -> None:
        connections = coordinator({"job": TOKEN}, Terms(rate=1e9, divergence_bound=divergence_bound))
        self.connections = connections
        self.job: Coordination = connections.jobs["job"]
        self.server = CoordinatorServer(listen, connections, stranger_s=stranger_s)
        self.address = self.server.address
        self.thread = threading.Thread(target=self.server.serve)
        self.thread.start()

    def stop(self) -> None:
        self.server.stop()
        self.thread.join(LONG_S)
        assert not self.thread.is_alive()


@pytest.fixture
def running() -> Iterator[Running]:
    server = Running()
    yield server
    server.stop()


def settings(address: str, worker: int = 0, **more: Any) -> CoordinatorSettings:
    return replace(CoordinatorSettings(address, "job", TOKEN, BOUND_S, f"machine{worker}"), **more)


def connect(
    address: str, worker: int = 0, replicates: bool = False, **more: Any
) -> contextlib.closing[CoordinatorClient]:
    return contextlib.closing(CoordinatorClient(settings(address, worker, **more), worker, replicates))


def served(client: CoordinatorClient) -> bool:
    return client.wait_welcome(LONG_S) and client.ask(1000, 0, 1.0).coordinated


def until(done: Callable[[], bool]) -> None:
    ends_s = time.monotonic() + LONG_S
    while not done():
        assert time.monotonic() < ends_s
        time.sleep(0.01)


def test_an_update_is_granted_and_counted(running: Running) -> None:
    with connect(running.address) as client:
        delays: list[int] = []
        client.on_delay = delays.append
        assert client.wait_welcome(LONG_S)
        permission = client.ask(1000, 0, 1.0)
        assert (permission.goes, permission.coordinated) == (True, True)
        client.done(permission)
        until(lambda: client.version == 1)
        assert delays == [1]
        with pytest.raises(UserError, match="give numbers from 0 on"):
            client.ask(-1, 0, 1.0)


def test_a_dead_coordinator_gives_one_warning_and_its_successor_hears_all_reports(
    caplog: pytest.LogCaptureFixture,
) -> None:
    first = Running()
    with caplog.at_level(logging.WARNING, "prophet_scheduler"), connect(first.address, bound_s=0.3) as client:
        assert client.wait_welcome(LONG_S)
        first.stop()
        for _ in range(2):
            permission = client.ask(1000, 0, 1.0)
            assert permission.goes and not permission.coordinated
            client.done(permission)
        assert client.away
        assert [record.message.count("arrival order") for record in caplog.records] == [1]
        second = Running(first.address)
        try:
            until(lambda: second.job.version == 2)
            # On a busy machine it may be away once more, for longer than the bound.
            until(lambda: client.ask(1000, 0, 1.0).coordinated)
        finally:
            second.stop()


def test_a_silent_coordinator_is_away_until_it_answers(caplog: pytest.LogCaptureFixture) -> None:
    server = Running()
    answers, receive = threading.Event(), server.connections.receive
    with connect(server.address, bound_s=0.3) as client:
        assert client.wait_welcome(LONG_S)
        server.connections.receive = lambda *of: receive(*of) if answers.is_set() else []  # type: ignore[method-assign]
        permission = client.ask(1000, 0, 1.0)
        assert not permission.coordinated and client.away
        client.done(permission)
        assert not client.ask(1000, 0, 1.0).coordinated
        answers.set()
        until(lambda: server.job.version == 1)
    server.stop()


def test_a_copy_is_ordered_until_the_worker_answers() -> None:
    server = Running(divergence_bound=2.0)
    orders: queue.SimpleQueue[msg.Copy] = queue.SimpleQueue()
    try:
        with connect(server.address, replicates=True) as client:
            client.on_copy = orders.put
            assert client.wait_welcome(LONG_S)
            granted: list[bool] = []
            asking = threading.Thread(target=lambda: granted.append(client.ask(1000, 0, 1.0).coordinated))
            asking.start()
            first, again = orders.get(timeout=LONG_S), orders.get(timeout=LONG_S)
            assert first == again and first.bound == 2.0 and not granted
            client.copied(first.number)
            asking.join(LONG_S)
            assert granted == [True]
    finally:
        server.stop()


def test_a_finished_worker_waits_for_the_others(running: Running) -> None:
    with connect(running.address, 0) as first, connect(running.address, 1) as second:
        for client in (first, second):
            assert client.wait_welcome(LONG_S)
        died: list[tuple[int, ...]] = []
        waiting = threading.Thread(target=lambda: died.append(first.wait_for_others()))
        waiting.start()
        assert second.wait_for_others() == ()
        waiting.join(LONG_S)
        assert died == [()]
    assert first.wait_for_others() == (), "it is closed"


def test_closing_a_client_says_bye_and_blocks_nothing() -> None:
    server = Running()
    with connect(server.address) as client:
        assert client.wait_welcome(LONG_S)
    until(lambda: len(server.connections) == 0)
    late = client.ask(1000, 0, 1.0)
    assert late.goes and not late.coordinated
    client.done(late)
    client.close()
    server.stop()
    assert server.job.receive(0, msg.Bye(), 0.0) == [(0, msg.Parting(working=0))], "it has not died"


def test_a_wrong_token_is_refused_at_the_start(running: Running) -> None:
    with connect(running.address, token="another token of the tests") as client:
        with pytest.raises(UserError, match="tenant job: the token is wrong"):
            client.wait_welcome(LONG_S)
        assert not client.ask(1000, 0, 1.0).coordinated


SILLY = [
    b"\xff\xff\xff\xff",
    b"\0\0\0\x02{}",
    b"\0\0",
    msg.framed(msg.Challenge(nonce="0" * 64)) * 3,
    msg.framed(msg.Grant(update=7, start_s=1e308, version=2**53)),
    msg.framed(msg.Denied(text="no", update=7)),
    msg.framed(msg.Parting(working=0, died=(2**20 - 1,))),
    msg.framed(msg.Copy(number=7, bound=1e308)),
    msg.framed(msg.Welcome(epoch=0, version=0)) + msg.framed(msg.Grant(update=7, start_s=1e308, version=2**53)),
    msg.framed(msg.Welcome(epoch=0, version=0)) + msg.framed(msg.Denied(text="no")) + msg.framed(msg.Wait(update=7)),
]


@pytest.mark.parametrize("sent", SILLY)
def test_no_answer_of_a_coordinator_stops_a_worker(sent: bytes) -> None:
    with listener_at("127.0.0.1", 0) as listener:
        host, port = listener.getsockname()[:2]
        with connect(f"tcp://{host}:{port}", bound_s=0.3) as client:
            own, _ = listener.accept()
            with own:
                own.sendall(sent)
                permission = client.ask(1000, 0, 1.0)
                assert permission.goes and not permission.coordinated
                assert client.wait_for_others() == ()


def stranger(address: str) -> socket.socket:
    host, port = address.removeprefix("tcp://").split(":")
    return socket.create_connection((host, int(port)), LONG_S)


def answer_of(own: socket.socket) -> bytes:
    """Return the received bytes; empty if the connection is closed."""
    with contextlib.suppress(ConnectionResetError):
        return own.recv(4096)
    return b""


def test_invalid_messages_do_not_disturb_other_connections(running: Running) -> None:
    with connect(running.address) as client:
        assert client.wait_welcome(LONG_S)
        for data in (b"x" * (msg.MOST_REQUEST_BYTES + 1), b"nonsense", b""):
            with stranger(running.address) as own:
                own.sendall(len(data).to_bytes(msg.LENGTH_BYTES, "big") + data)
                assert (b"denied" in answer_of(own)) == (len(data) <= msg.MOST_REQUEST_BYTES), "or it is closed"
        assert served(client)


def until_closed(own: socket.socket) -> None:
    """Read until the other end closes the connection."""
    with contextlib.suppress(ConnectionResetError):
        while own.recv(1 << 16):
            pass


ZMTP = b"\xff" + b"\0" * 8 + b"\x7f\x03\0NULL" + b"\0" * 48


@pytest.mark.parametrize(
    "opening",
    [b"", b"\0", b"\0\0\x10", b"\0\0\x10\0" + b"x" * 4095, b"\xff\xff\xff\xff", ZMTP, b"GET / HTTP/1.1\r\n\r\n"],
    ids=["nothing", "a byte", "half a length", "all but a byte", "a huge length", "ZeroMQ", "HTTP"],
)
def test_strangers_are_disconnected_in_time_and_workers_served_meanwhile(opening: bytes) -> None:
    server = Running(stranger_s=0.3)
    try:
        with stranger(server.address) as own, connect(server.address) as client:
            own.sendall(opening)
            assert served(client)
            until_closed(own)
    finally:
        server.stop()


def test_many_idle_strangers_keep_no_worker_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "MOST_STRANGERS", 8)
    server = Running()
    try:
        with contextlib.ExitStack() as strangers, connect(server.address) as client:
            opened = [strangers.enter_context(stranger(server.address)) for _ in range(40)]
            assert served(client)
            until_closed(opened[0])
    finally:
        server.stop()


def test_reconnecting_pauses_after_each_hangup(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "RECONNECT_S", 0.04)
    with listener_at("127.0.0.1", 0) as listener:
        host, port = listener.getsockname()[:2]
        with connect(f"tcp://{host}:{port}"):
            began = time.monotonic()
            for _ in range(5):
                listener.accept()[0].close()
            assert time.monotonic() - began >= 4 * 0.04


def test_invalid_addresses_and_names_are_refused(running: Running) -> None:
    with pytest.raises(UserError, match=r"^--listen "):
        Running(running.address)
    with pytest.raises(UserError, match="the coordinator is 'nowhere'; it must be HOST:PORT"):
        connect("nowhere")
    with pytest.raises(UserError, match="one is invalid"):
        connect(running.address, tenant="two words")


@pytest.mark.parametrize(
    ("environ", "line"),
    [
        ({"PROPHET_COORDINATOR": "host"}, "PROPHET_COORDINATOR is 'host'; it must be HOST:PORT"),
        ({"PROPHET_COORDINATOR": "host:99999"}, "PROPHET_COORDINATOR is 'host:99999'; it must be HOST:PORT"),
        ({"PROPHET_COORDINATOR": "host:1"}, "PROPHET_COORDINATOR_TOKEN_FILE is not: name the file"),
        ({"PROPHET_REPLICA": "file"}, "PROPHET_REPLICA is set, but PROPHET_COORDINATOR is not"),
        (
            {
                "PROPHET_COORDINATOR": "host:1",
                "PROPHET_COORDINATOR_TOKEN_FILE": "f",
                "PROPHET_COORDINATOR_BOUND_S": "0",
            },
            "PROPHET_COORDINATOR_BOUND_S is '0'; it must be a number of at least 0.05",
        ),
    ],
)
def test_invalid_settings_name_the_variable(environ: dict[str, str], line: str) -> None:
    with pytest.raises(UserError, match=line):
        coordinator_from_environ(environ)


def test_no_tenant_can_use_all_file_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "_most_files", lambda: 1024)
    jobs = coordinator({"a": TOKEN, "b": TOKEN}, Terms()).jobs
    most = sum(job.terms.most_workers for job in jobs.values())
    assert 0 < most <= 1024 - server_module.MOST_STRANGERS
