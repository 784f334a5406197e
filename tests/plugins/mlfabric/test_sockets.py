"""Server and client over real sockets on this machine: what the virtual clock cannot show."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from prophet_mlfabric import client as client_module
from prophet_mlfabric import messages as msg
from prophet_mlfabric import nic_rates
from prophet_mlfabric import server as server_module
from prophet_mlfabric.client import CoordinatorClient
from prophet_mlfabric.coordination import Coordination
from prophet_mlfabric.job import Terms
from prophet_mlfabric.server import CoordinatorServer, coordinator
from prophet_mlfabric.settings import CoordinatorSettings, coordinator_from_environ
from prophet_scheduler.core.errors import UserError
from prophet_scheduler.hub import listener_at
from prophet_scheduler.learn.bandwidth import FRAMING, NicSample

TOKEN = "a token of the tests"
LONG_S = 60.0
"""Longer than anything here takes."""
BOUND_S = 12.0
"""Longer than a busy machine keeps anyone silent; what is lost is said again after a quarter of this time."""


class Running:
    """A server in a thread."""

    def __init__(
        self,
        listen: str = "tcp://127.0.0.1:0",
        divergence_bound: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        stranger_s: float = LONG_S,
    ) -> None:
        connections = coordinator({"job": TOKEN}, Terms(rate=1e9, divergence_bound=divergence_bound))
        self.job: Coordination = connections.jobs["job"]
        self.server = CoordinatorServer(listen, connections, clock, stranger_s=stranger_s)
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


def client_of(address: str, worker: int = 0, workers: int | None = None, **more: Any) -> CoordinatorClient:
    return CoordinatorClient(settings(address, worker, **more), worker, workers, watch_nic=False)


def connect(address: str, worker: int = 0, **more: Any) -> contextlib.closing[CoordinatorClient]:
    return contextlib.closing(client_of(address, worker, **more))


def served(client: CoordinatorClient) -> bool:
    return client.wait_welcome(LONG_S) and client.ask(1000, 0, 1.0).permission.result(LONG_S).coordinated


def stranger(address: str) -> socket.socket:
    host, port = address.removeprefix("tcp://").split(":")
    return socket.create_connection((host, int(port)), LONG_S)


def answer_of(own: socket.socket) -> bytes:
    """Return what comes; empty if the connection is closed."""
    with contextlib.suppress(ConnectionResetError):
        return own.recv(4096)
    return b""


def test_an_update_there_and_back(running: Running) -> None:
    with connect(running.address) as client:
        assert client.wait_welcome(LONG_S)
        asking = client.ask(1000, 0, 1.0)
        permission = asking.permission.result(LONG_S)
        assert (permission.goes, permission.coordinated, permission.aggregator) == (True, True, None)
        outcome = client.done(asking, 1000).result(LONG_S)
        assert (outcome.applied, outcome.version, outcome.delay) == (True, 1, 1)
        assert client.version == 1


@pytest.fixture
def at_rest() -> Iterator[tuple[Running, list[float]]]:
    """Server whose time the test sets, in a list of one number."""
    now = [0.0]
    server = Running(clock=lambda: now[0])
    yield server, now
    server.stop()


def test_updates_are_summed_at_another_worker(at_rest: tuple[Running, list[float]]) -> None:
    running, now = at_rest
    with (
        connect(running.address, 0) as busy,
        connect(running.address, 1) as member,
        connect(running.address, 2) as other,
    ):
        collections: list[msg.Collect] = []
        for client in (busy, member, other):
            client.on_collect(collections.append, "127.0.0.1:1")
            assert client.wait_welcome(LONG_S)
        # The wire is busy for 10 s, so what comes in the same tenth of a second meanwhile is summed on the way.
        first = busy.ask(10**10, 0, 1.0)
        assert first.permission.result(LONG_S).aggregator is None
        askings = [member.ask(1000, 0, 1.0), other.ask(1000, 0, 1.0)]
        ends_s = time.monotonic() + LONG_S
        while len(running.job._ready) < len(askings):
            assert time.monotonic() < ends_s
        now[0] += 0.2
        permissions = [asking.permission.result(LONG_S) for asking in askings]
        assert len({permission.aggregator for permission in permissions}) == 1
        number = collections[-1].number
        aggregator = {0: busy, 1: member, 2: other}[permissions[0].aggregator or 0]
        granted = aggregator.collected(number)
        busy.done(first, 10**10).result(LONG_S)
        assert granted.result(LONG_S).goes
        aggregator.pushed_sum(number, 1000)
        outcomes = [asking.outcome.result(LONG_S) for asking in askings]
        assert sorted(outcome.version for outcome in outcomes) == [2, 3]


def test_a_coordinator_that_dies_is_one_warning_and_one_that_is_back_is_used(
    caplog: pytest.LogCaptureFixture,
) -> None:
    first = Running()
    with caplog.at_level(logging.WARNING, "prophet_scheduler"), connect(first.address, bound_s=0.3) as client:
        assert client.wait_welcome(LONG_S)
        first.stop()
        for place in range(2):
            asking = client.ask(1000, 0, 1.0)
            first_number = asking.update - place
            assert not asking.permission.result(LONG_S).coordinated
            assert client.done(asking, 1000).result(LONG_S).delay is None
        assert client.away
        assert [record.message.count("arrival order") for record in caplog.records] == [1]
        second = Running(first.address)
        try:
            while True:
                client.wait_welcome(LONG_S)
                last = client.ask(1000, 0, 1.0)
                coordinated = last.permission.result(LONG_S).coordinated
                # On a busy machine it may be away once more, for longer than the bound.
                if client.done(last, 1000).result(LONG_S).delay is not None and coordinated:
                    break
            assert second.job.version == last.update - first_number + 1
        finally:
            second.stop()


def test_workers_wait_for_each_other_after_each_round(running: Running) -> None:
    with (
        connect(running.address, 0, workers=2, staleness=0) as first,
        connect(running.address, 1, workers=2, staleness=0) as second,
    ):
        for client in (first, second):
            assert client.wait_welcome(LONG_S)
            assert client.clock(0, 1).result(LONG_S)
        waits = first.clock(1, 1)
        assert second.clock(1, 1).result(LONG_S)
        assert waits.result(LONG_S)


def test_a_worker_is_asked_for_a_copy_until_it_says_what_came_of_it() -> None:
    server = Running(divergence_bound=2.0)
    orders: list[msg.Copy] = []
    made = threading.Event()

    def make(order: msg.Copy) -> None:
        orders.append(order)
        made.set()

    try:
        with connect(server.address, replica=("a", 1)) as client:
            assert client.wait_welcome(LONG_S)
            asking = client.ask(1000, 0, 1.0)
            client.on_copy(make)
            assert made.wait(LONG_S)
            assert not asking.permission.done()
            client.copied(orders[0].number)
            assert asking.permission.result(LONG_S).coordinated
            assert orders[0].bound == 2.0
    finally:
        server.stop()


def test_at_the_end_a_worker_waits_until_all_have_finished(running: Running) -> None:
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
    assert not first.clock(1, 1).result(LONG_S)


def test_a_wrong_token_is_one_line_at_the_start(running: Running) -> None:
    with connect(running.address, token="another token of the tests") as client:
        with pytest.raises(UserError, match="tenant job: the token is wrong"):
            client.wait_welcome(LONG_S)
        assert not client.ask(1000, 0, 1.0).permission.result(LONG_S).coordinated


def test_the_rate_of_the_nic_is_reported_when_an_update_has_travelled(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampled = threading.Event()

    def sample(interface: str, time_s: float) -> NicSample:
        """Sample a NIC that sends 100 GB of payload a second, whatever the time."""
        sampled.set()
        return NicSample(time_s, int(1e11 * FRAMING * time_s), 0)

    monkeypatch.setattr(client_module, "interface_towards", lambda host: "eth0")
    monkeypatch.setattr(nic_rates, "sample_nic", sample)
    with contextlib.closing(CoordinatorClient(settings(running.address), 0)) as client:
        for _ in range(2):  # what the first one showed is heard before the second one is done
            asking = client.ask(1000, 0, 1.0)
            asking.permission.result(LONG_S)
            sampled.clear()  # the NIC may have been sampled before, during the wait for the grant
            assert sampled.wait(LONG_S)
            client.done(asking, 1000).result(LONG_S)
        network, node = running.job._network, running.job._nodes["machine0"]
    assert network.uplinks[node].rates == [pytest.approx(1e11, rel=1e-3)]
    assert network.downlinks[node].rates == [1e9]  # nobody has measured it


def test_a_closed_client_leaves_nobody_waiting(running: Running) -> None:
    client = client_of("tcp://127.0.0.1:9")
    asking = client.ask(1000, 0, 1.0)
    client.close()
    assert not asking.permission.result(LONG_S).coordinated
    late = client.ask(1000, 0, 1.0)
    assert not late.permission.result(LONG_S).coordinated
    assert client.done(late, 1000).result(LONG_S).applied
    assert client.collected(3).result(LONG_S).goes
    client.close()


def test_a_message_that_is_too_long_or_nonsense_does_not_disturb_others(running: Running) -> None:
    with connect(running.address) as client:
        assert client.wait_welcome(LONG_S)
        for data in (b"x" * (msg.MOST_REQUEST_BYTES + 1), b"nonsense", b""):
            with stranger(running.address) as own:
                own.sendall(len(data).to_bytes(msg.LENGTH_BYTES, "big") + data)
                assert (b"denied" in answer_of(own)) == (len(data) <= msg.MOST_REQUEST_BYTES), "or it is closed"
        assert served(client)


def enter(address: str) -> socket.socket:
    """A connection of worker 3, which has proved that it has the token."""
    hello = msg.Hello(tenant="job", worker=3, incarnation=1, node="machine")
    own = stranger(address)
    own.sendall(msg.framed(hello))
    challenge = msg.decode_answer(next(msg.take_frames(bytearray(own.recv(4096)), 4096)))
    assert isinstance(challenge, msg.Challenge)
    own.sendall(msg.framed(hello.model_copy(update={"proof": msg.prove(TOKEN, challenge.nonce, hello)})))
    assert b"welcome" in own.recv(4096)
    return own


def until_closed(own: socket.socket) -> None:
    """Reads until the other end closes the connection."""
    with contextlib.suppress(ConnectionResetError):
        while own.recv(1 << 16):
            pass


ZMTP = b"\xff" + b"\0" * 8 + b"\x7f\x03\0NULL" + b"\0" * 48


@pytest.mark.parametrize(
    "opening",
    [b"", b"\0", b"\0\0\x10", b"\0\0\x10\0" + b"x" * 4095, b"\xff\xff\xff\xff", ZMTP, b"GET / HTTP/1.1\r\n\r\n"],
    ids=["nothing", "a byte", "half a length", "all but a byte", "a huge length", "ZeroMQ", "HTTP"],
)
def test_a_stranger_is_disconnected_in_time_and_a_worker_beside_it_is_served(opening: bytes) -> None:
    server = Running(stranger_s=0.3)
    try:
        with stranger(server.address) as own, connect(server.address) as client:
            own.sendall(opening)
            assert served(client)
            until_closed(own)
    finally:
        server.stop()


def test_many_strangers_who_wait_keep_no_worker_out(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running.server._hub, "_most_strangers", 8)
    strangers = [stranger(running.address) for _ in range(40)]
    try:
        with connect(running.address) as client:
            assert served(client)
            assert len(running.server._hub) <= 8 + 1
    finally:
        for own in strangers:
            own.close()


def test_a_connection_on_which_its_worker_has_come_anew_is_closed(running: Running) -> None:
    with enter(running.address) as first, enter(running.address) as second:
        until_closed(first)
        second.sendall(msg.framed(msg.Ask(update=0, size_bytes=1, version=0)))
        assert b"wait" in second.recv(4096)


def test_a_coordinator_that_hangs_up_at_once_is_not_called_without_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "RECONNECT_S", (0.02, 0.04))
    with listener_at("127.0.0.1", 0) as listener:
        host, port = listener.getsockname()[:2]
        with connect(f"tcp://{host}:{port}"):
            began = time.monotonic()
            for _ in range(5):
                listener.accept()[0].close()
            assert time.monotonic() - began >= 0.02 + 3 * 0.04


def test_a_coordinator_that_sends_nonsense_is_away_and_its_worker_goes_on() -> None:
    with listener_at("127.0.0.1", 0) as listener:
        host, port = listener.getsockname()[:2]
        with connect(f"tcp://{host}:{port}", bound_s=0.5) as client:
            for sent in (b"\xff\xff\xff\xff", b"\0\0\0\x02{}", b"\0\0"):
                own, _ = listener.accept()
                with own:
                    own.sendall(sent)
            assert not client.ask(1000, 0, 1.0).permission.result(LONG_S).coordinated


def test_an_address_that_cannot_be_is_one_line(running: Running) -> None:
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
        ({"PROPHET_STALENESS": "-1"}, "PROPHET_STALENESS is '-1'; it must be a whole number of rounds, 0 to 1000000"),
        ({"PROPHET_STALENESS": "2"}, "PROPHET_STALENESS is set, but PROPHET_COORDINATOR is not"),
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
def test_settings_that_cannot_be_name_the_variable(environ: dict[str, str], line: str) -> None:
    with pytest.raises(UserError, match=line):
        coordinator_from_environ(environ)


def test_no_tenant_can_take_all_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "_most_files", lambda: 1024)
    jobs = coordinator({"a": TOKEN, "b": TOKEN}, Terms()).jobs
    most = sum(job.terms.most_workers for job in jobs.values())
    assert 0 < most <= 1024 - server_module.MOST_STRANGERS
