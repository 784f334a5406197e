"""The status socket: whose it is, what is left of one, and what answers."""

from __future__ import annotations

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

from prophet.watch import server as server_module
from prophet.watch.server import StatusServer
from prophet.watch.sockets import (
    MOST_PATH_BYTES,
    ask,
    folders,
    listen,
    name_of_socket,
    own_folder,
    remove_stale,
    sockets_in,
)
from prophet.watch.status import WorkerName

LONG_S = 60.0
"""Nothing takes so long, also where the machine stands still for a while."""


def asked(path: Path) -> dict[str, Any] | None:
    """What the socket at `path` answers, however long that takes."""
    return ask(path, LONG_S)


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server gives up nobody who is late, as these tests may be."""
    monkeypatch.setattr(server_module, "ANSWER_LIMIT_S", LONG_S)
    for each in (server_module._Handler, server_module._PageServer):
        monkeypatch.setattr(each, "timeout", LONG_S)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short name, as sockets need it."""
    with tempfile.TemporaryDirectory(prefix="prophet-") as name:
        yield own_folder([Path(name) / "own"])


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


def test_the_folder_is_the_users_own() -> None:
    with tempfile.TemporaryDirectory() as name:
        made = own_folder([Path(name) / "prophet"])
        assert made.stat().st_mode & 0o777 == 0o700
        assert own_folder([made]) == made
        made.chmod(0o750)
        with pytest.raises(PermissionError, match="chmod 700"):
            own_folder([made])
        assert sockets_in(made) == []
        second = Path(name) / "second"
        assert own_folder([made, second]) == second
        link = Path(name) / "link"
        link.symlink_to(second)
        with pytest.raises(NotADirectoryError):
            own_folder([link])


def test_a_folder_of_another_user_is_not_used(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setattr(os, "getuid", lambda: folder.stat().st_uid + 1)
    with pytest.raises(PermissionError):
        own_folder([folder])


def test_where_folders_are_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_who_connects_is_told_once(folder: Path, serve: Callable[..., StatusServer]) -> None:
    path = folder / "job.0.1.status"
    serve(lambda server: server.at_path(path))
    assert [asked(path), asked(path)] == [{"a": 1}, {"a": 1}]
    assert path.stat().st_mode & 0o777 == 0o600
    assert sockets_in(folder) == [path]


def test_nothing_is_left_when_it_closes(folder: Path, serve: Callable[..., StatusServer]) -> None:
    path = folder / "job.0.1.status"
    server = serve(lambda server: server.at_path(path))
    server.close()
    assert not path.exists() and asked(path) is None
    server.close()


def test_what_a_killed_process_left_is_removed_and_nothing_else(
    folder: Path, serve: Callable[..., StatusServer]
) -> None:
    stale, gone, alive, other = (folder / f"{name}.status" for name in ("stale", "gone", "alive", "other"))
    for path in (stale, gone):
        listen(path).close()
    serve(lambda server: server.at_path(alive))
    other.write_text("no socket")
    assert asked(gone) is None and not gone.exists()
    remove_stale(folder)
    assert not stale.exists() and alive.exists()
    assert asked(alive) == {"a": 1}


def test_an_answer_that_is_none_is_none(folder: Path, serve: Callable[..., StatusServer]) -> None:
    for number, answer in enumerate((b"", b"[1]", b"{")):
        path = folder / f"{number}.status"
        serve(lambda server, path=path: server.at_path(path), lambda answer=answer: answer)
        assert asked(path) is None
        assert path.exists()


def test_who_asks_and_goes_away_disturbs_nobody(folder: Path, serve: Callable[..., StatusServer]) -> None:
    path = folder / "job.status"
    serve(lambda server: server.at_path(path), lambda: json.dumps({"long": "x" * 1_000_000}).encode())
    for _ in range(3):
        with socket.socket(socket.AF_UNIX) as impatient:
            impatient.connect(str(path))
    answer = asked(path)
    assert answer is not None and len(answer["long"]) == 1_000_000


def test_a_failure_is_one_warning_and_no_socket(
    folder: Path, serve: Callable[..., StatusServer], caplog: pytest.LogCaptureFixture
) -> None:
    path = folder / "job.status"
    serve(lambda server: server.at_path(path), lambda: b"%d" % (1 // 0))
    assert asked(path) is None
    for thread in threading.enumerate():
        if thread.name == "prophet-status":
            thread.join(LONG_S)
    assert not path.exists() and asked(path) is None
    assert [record.getMessage() for record in caplog.records] == [
        "Prophet: no longer says what it does: ZeroDivisionError: integer division or modulo by zero"
    ]


def test_figures_are_on_the_loopback(serve: Callable[..., StatusServer]) -> None:
    ports: list[int] = []
    serve(lambda server: ports.append(server.at_address("127.0.0.1", 0)))
    with urllib.request.urlopen(f"http://127.0.0.1:{ports[0]}/metrics", timeout=LONG_S) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        assert answer.read() == b"figure 1\n"
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(f"http://127.0.0.1:{ports[0]}/other", timeout=LONG_S)


def test_a_fork_neither_answers_nor_keeps_the_socket(folder: Path, serve: Callable[..., StatusServer]) -> None:
    path = folder / "job.status"
    server = serve(lambda server: server.at_path(path))
    read, write = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover
        closed = all(each.fileno() == -1 for each in server._sockets)
        server.close()
        os.write(write, b"1" if closed else b"0")
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 1) == b"1"
    assert asked(path) == {"a": 1}, "the parent's is as it was"
    assert server_module._servers is not None
