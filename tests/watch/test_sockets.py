"""The status socket: who owns it, what remains of an old one, and what answers."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import tempfile
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prophet_scheduler.watch import server as server_module
from prophet_scheduler.watch.server import StatusServer
from prophet_scheduler.watch.sockets import (
    MOST_PATH_BYTES,
    ask,
    folders,
    listen,
    name_of_socket,
    own_folder,
    remove_stale,
    sockets_in,
)
from prophet_scheduler.watch.status import WorkerName

LONG_S = 60.0
"""Longer than anything here takes, even if the machine stands still for a while."""


def asked(path: Path) -> dict[str, Any] | None:
    """Return what the socket at `path` answers, however long that takes."""
    return ask(path, LONG_S)


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let servers wait for clients that are late, as these tests may be."""
    monkeypatch.setattr(server_module, "ANSWER_LIMIT_S", LONG_S)


@pytest.fixture
def folder(short_folder: Path) -> Path:
    return own_folder([short_folder / "own"])


@pytest.fixture
def serve() -> Iterator[Callable[..., StatusServer]]:
    running: list[StatusServer] = []

    def start(
        prepare: Callable[[StatusServer], object], document: Callable[[], bytes] = lambda: b'{"a": 1}\n'
    ) -> StatusServer:
        server = StatusServer(document, lambda: b"figure 1\n")
        prepare(server)
        server.start()
        running.append(server)
        return server

    yield start
    for server in running:
        server.close()


@pytest.fixture
def socket_of(folder: Path, serve: Callable[..., StatusServer]) -> Callable[..., Path]:
    def start(document: Callable[[], bytes] = lambda: b'{"a": 1}\n') -> Path:
        path = folder / f"{len(sockets_in(folder))}.status"
        serve(lambda server: server.at_path(path), document)
        return path

    return start


def test_folder_is_private(short_folder: Path) -> None:
    made = own_folder([short_folder / "prophet"])
    assert made.stat().st_mode & 0o777 == 0o700
    assert own_folder([made]) == made
    made.chmod(0o750)
    with pytest.raises(PermissionError, match="chmod 700"):
        own_folder([made])
    assert sockets_in(made) == []
    second = short_folder / "second"
    assert own_folder([made, second]) == second
    link = short_folder / "link"
    link.symlink_to(second)
    with pytest.raises(NotADirectoryError):
        own_folder([link])


def test_folder_of_other_user_is_refused(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setattr(os, "getuid", lambda: folder.stat().st_uid + 1)
    with pytest.raises(PermissionError):
        own_folder([folder])


def test_candidates_for_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/var/tmp")
    own = [Path("/var/tmp/prophet-7"), Path("/tmp/prophet-7")]
    assert folders({}, 7) == own
    with tempfile.TemporaryDirectory(prefix="r-") as runtime:
        assert folders({"XDG_RUNTIME_DIR": runtime}, 7) == [Path(runtime) / "prophet", *own]
    assert folders({"XDG_RUNTIME_DIR": "/there/is/none"}, 7) == own
    long = tmp_path / ("x" * 80)
    long.mkdir()
    assert folders({"XDG_RUNTIME_DIR": str(long)}, 7) == own, "no socket has a name so long"


def test_names_are_short_and_safe() -> None:
    worker = WorkerName("tr/ain ing.py" * 9, 12345, "ddp", pid=4_000_000)
    name = name_of_socket(worker)
    assert "/" not in name and len(name) + len("/run/user/1000000/prophet/") < MOST_PATH_BYTES


def test_socket_answers_each_client(folder: Path, socket_of: Callable[..., Path]) -> None:
    path = socket_of()
    assert [asked(path), asked(path)] == [{"a": 1}, {"a": 1}]
    assert path.stat().st_mode & 0o777 == 0o600
    assert sockets_in(folder) == [path]


def test_close_removes_socket(folder: Path, serve: Callable[..., StatusServer]) -> None:
    path = folder / "job.0.1.status"
    server = serve(lambda server: server.at_path(path))
    server.close()
    assert not path.exists() and asked(path) is None
    server.close()


def test_stale_sockets_are_removed(folder: Path, socket_of: Callable[..., Path]) -> None:
    stale, gone, other = (folder / f"{name}.status" for name in ("stale", "gone", "other"))
    for path in (stale, gone):
        listen(path).close()
    alive = socket_of()
    other.write_text("no socket")
    assert asked(gone) is None and not gone.exists()
    remove_stale(folder)
    assert not stale.exists() and alive.exists()
    assert asked(alive) == {"a": 1}


@pytest.mark.parametrize("goes", [True, False])
def test_idle_clients_disturb_nobody(goes: bool, socket_of: Callable[..., Path]) -> None:
    path = socket_of(lambda: json.dumps({"long": "x" * 1_000_000}).encode())
    with contextlib.ExitStack() as idle:
        for _ in range(3):
            own = idle.enter_context(socket.socket(socket.AF_UNIX))
            own.connect(str(path))
            if goes:
                own.close()
        answer = asked(path)
        assert answer is not None and len(answer["long"]) == 1_000_000


def test_failure_is_one_warning_and_removes_socket(
    socket_of: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    path = socket_of(lambda: b"%d" % (1 // 0))
    assert asked(path) is None
    for thread in threading.enumerate():
        if thread.name == "prophet-status":
            thread.join(LONG_S)
    assert not path.exists() and asked(path) is None
    assert caplog.messages == [
        "Prophet: no longer reports its status: ZeroDivisionError: integer division or modulo by zero"
    ]


def test_fork_closes_socket(folder: Path, serve: Callable[..., StatusServer]) -> None:
    path = folder / "job.status"
    server = serve(lambda server: server.at_path(path))
    read, write = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover
        closed = all(each.fileno() == -1 for each in server._hub._listeners)
        server.close()
        os.write(write, b"1" if closed else b"0")
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 1) == b"1"
    assert asked(path) == {"a": 1}, "the parent's is as it was"
    assert server_module._servers is not None


@pytest.fixture
def both(folder: Path, serve: Callable[..., StatusServer]) -> tuple[Path, int]:
    """Return the status socket and the page's port of one worker."""
    ports: list[int] = []

    def prepare(server: StatusServer) -> None:
        server.at_path(folder / "job.status")
        ports.append(server.at_address("127.0.0.1", 0))

    serve(prepare)
    return folder / "job.status", ports[0]


def test_metrics_over_http(both: tuple[Path, int]) -> None:
    with urllib.request.urlopen(f"http://127.0.0.1:{both[1]}/metrics", timeout=LONG_S) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        assert answer.read() == b"figure 1\n"


def scrape(port: int, said: bytes, ends: bool = True) -> bytes:
    """Return all that comes back until the other end closes."""
    with socket.create_connection(("127.0.0.1", port), LONG_S) as own:
        own.sendall(said)
        if ends:
            own.shutdown(socket.SHUT_WR)
        pieces = []
        with contextlib.suppress(ConnectionResetError):
            while piece := own.recv(1 << 16):
                pieces.append(piece)
        return b"".join(pieces)


@pytest.mark.parametrize("said", [b"", b"GET", b"GET /metrics HTTP/1.1", b"GET /metrics HTTP/1.1\r\nX: "])
def test_slow_scraper_delays_nobody(both: tuple[Path, int], said: bytes) -> None:
    path, port = both
    with socket.create_connection(("127.0.0.1", port), LONG_S) as slow:
        slow.sendall(said)
        assert asked(path) == {"a": 1}
        slow.sendall(b"a")
        assert scrape(port, b"GET /metrics HTTP/1.0\r\n\r\n").endswith(b"\r\n\r\nfigure 1\n")
        slow.sendall(b"a")
        assert asked(path) == {"a": 1}


def test_idle_scrapers_are_replaced(both: tuple[Path, int]) -> None:
    path, port = both
    with contextlib.ExitStack() as stack:
        scrapers = (socket.create_connection(("127.0.0.1", port), LONG_S) for _ in range(3 * server_module.MOST_ASKING))
        idle = [stack.enter_context(own) for own in scrapers]
        assert asked(path) == {"a": 1}
        assert scrape(port, b"GET / HTTP/1.0\r\n\r\n").endswith(b"figure 1\n")
        assert idle[0].recv(1) == b"", "the oldest has gone"


def test_scraper_has_a_time_limit(monkeypatch: pytest.MonkeyPatch, serve: Callable[..., StatusServer]) -> None:
    monkeypatch.setattr(server_module, "ANSWER_LIMIT_S", 0.2)
    ports: list[int] = []
    serve(lambda server: ports.append(server.at_address("127.0.0.1", 0)))
    assert scrape(ports[0], b"GET / HTTP/1.0\r\nX: ", ends=False) == b""


@pytest.mark.parametrize(
    ("said", "status"),
    [
        pytest.param(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n", 200, id="as it is"),
        pytest.param(b"GET /metrics?a=b HTTP/1.1\n\n", 200, id="bare newlines"),
        pytest.param(b"GET / HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\n\r\n", 200, id="two at once"),
        pytest.param(b"GET /\r\n\r\n", 200, id="of HTTP 0.9"),
        pytest.param(b"HEAD / HTTP/1.1\r\n\r\n", 405, id="head"),
        pytest.param(b"POST / HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n", 405, id="a body without end"),
        pytest.param(b"GET /" + b"x" * 5000 + b" HTTP/1.1\r\n\r\n", 404, id="a long path"),
        pytest.param(b"\r\n\r\n", 400, id="nothing"),
        pytest.param(b"\xff\xfe\n\n", 400, id="no letters"),
        pytest.param(b"x" * 20_000, 400, id="no newline"),
        pytest.param(b"GET / HTTP/1.1\r\nX: " + b"x" * 20_000 + b"\r\n\r\n", 400, id="a long header"),
        pytest.param(b"GET / HTTP/1.1", None, id="half a line"),
    ],
)
def test_odd_requests_get_one_answer(both: tuple[Path, int], said: bytes, status: int | None) -> None:
    path, port = both
    answer = scrape(port, said)
    assert answer.startswith(b"HTTP/1.0 %d " % status if status else b"") and answer.count(b"HTTP/1.0") == bool(status)
    assert answer.endswith(b"figure 1\n") == (status == 200)
    assert asked(path) == {"a": 1}


def test_random_bytes_get_at_most_one_answer(both: tuple[Path, int]) -> None:
    path, port = both
    whole = b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"

    @given(st.binary(max_size=40), st.integers(0, len(whole)), st.booleans())
    def stranger(data: bytes, place: int, more: bool) -> None:
        answer = scrape(port, whole[:place] + data + whole[place:] * more)
        assert answer.count(b"HTTP/1.0") <= 1

    stranger()
    assert asked(path) == {"a": 1}


def test_failing_page_is_one_warning(
    folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = StatusServer(lambda: b'{"a": 1}\n', lambda: b"%d" % (1 // 0))
    server.at_path(folder / "job.status")
    port = server.at_address("127.0.0.1", 0)
    server.start()
    try:
        for _ in range(2):
            assert scrape(port, b"GET / HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.0 500 ")
        assert asked(folder / "job.status") == {"a": 1}
    finally:
        server.close()
    assert caplog.messages == [
        "Prophet: has no metrics for Prometheus: ZeroDivisionError: integer division or modulo by zero"
    ]


@pytest.mark.parametrize(
    "answer", [b"", b"[1]", b"{", b"[" * 100_000, b'{"a":' * 100_000, b"9" * 10_000, b"\xff", b'{"a": 1} {"a": 2}']
)
def test_unreadable_status_is_none(socket_of: Callable[..., Path], answer: bytes) -> None:
    path = socket_of(lambda: answer)
    assert asked(path) is None
    assert path.exists()


def test_slow_status_is_given_up(folder: Path) -> None:
    path = folder / "job.status"
    stop = threading.Event()
    with listen(path) as listener:
        listener.setblocking(True)

        def drip() -> None:
            own, _ = listener.accept()
            with own, contextlib.suppress(OSError):
                while not stop.wait(0.01):
                    own.sendall(b" ")

        thread = threading.Thread(target=drip)
        thread.start()
        assert ask(path, 0.1) is None
        stop.set()
        thread.join(LONG_S)
