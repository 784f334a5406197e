"""A replica over real sockets on this machine: what it keeps, whom it refuses, and that its file is always a model."""

from __future__ import annotations

import contextlib
import http.client
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prophet_mlfabric.replica_model import ReplicaModel, decoded, encoded, load, updates_in
from prophet_mlfabric.replica_server import (
    MOST_HEAD_BYTES,
    MOST_SERVED,
    MOST_STRANGERS,
    KeptModel,
    ReplicaServer,
)
from prophet_mlfabric.replica_store import (
    DIGEST,
    MODEL,
    NONCE,
    PROOF,
    STATE,
    TENANT,
    UPDATES,
    ReplicaStore,
    digest_of,
    prove,
)
from prophet_scheduler.core.errors import UserError
from prophet_scheduler.hub import listener_at

TOKEN = "a token of the tests"
LONG_S = 60.0
"""Nothing takes so long."""


def model(updates: int = 7, before: int = 0, value: float = 1.5) -> ReplicaModel:
    weights = {"layer.weight": np.full((3, 2), value, np.float32), "file": np.zeros((), np.float32)}
    return ReplicaModel(weights, (updates, 0), before, 2.5)


class Running:
    """A replica in a thread, with a file in a folder."""

    def __init__(self, folder: Path, stranger_s: float = LONG_S) -> None:
        self.kept = KeptModel(folder / "model.npz")
        self.server = ReplicaServer("127.0.0.1", 0, "job", TOKEN, self.kept, stranger_s)
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    def store(self, tenant: str = "job", token: str = TOKEN) -> ReplicaStore:
        host, port = self.server.address.split(":")
        return ReplicaStore(host, int(port), tenant, token, LONG_S)

    def connect(self, said: bytes = b"") -> socket.socket:
        host, port = self.server.address.split(":")
        own = socket.create_connection((host, int(port)), LONG_S)
        own.sendall(said)
        return own

    def stop(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.close()


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    replica = Running(tmp_path)
    yield replica
    replica.stop()


def test_a_model_is_what_it_was(tmp_path: Path) -> None:
    first = model(7, before=5)
    file = tmp_path / "model.npz"
    file.write_bytes(encoded(first))
    for back in (decoded(encoded(first), "here"), load(file)):
        assert list(back.weights) == ["layer.weight", "file"]
        assert all(np.array_equal(back.weights[name], first.weights[name]) for name in first.weights)
        assert (back.counts, back.before, back.bound, back.updates) == ((7, 0), 5, 2.5, 12)
    assert updates_in(file) == 12


@pytest.mark.parametrize("change", ["nothing", "text", "cut off", "a letter", "another file", "other weights"])
def test_what_is_no_model_is_one_line(tmp_path: Path, change: str) -> None:
    file = tmp_path / "model.npz"
    whole = encoded(model())
    if change == "another file":
        np.savez(file, weights=np.zeros(3))
    elif change == "other weights":
        np.savez(file, schema=1, counts=[1], before=0, bound=1.0, **{"weights/a": np.zeros(2)})
    else:
        middle = whole.index(b"\x00\x00\xc0\x3f")
        changed = whole[:middle] + b"?" + whole[middle + 1 :]
        file.write_bytes({"nothing": b"", "text": b"no", "cut off": whole[:-30], "a letter": changed}[change])
    with pytest.raises(UserError, match=r"model\.npz: no replica of a model \(.+\); name the file of") as caught:
        load(file)
    assert "\n" not in str(caught.value)


def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none: cannot be read \(No such file or directory\)"):
        load(tmp_path / "none")


def test_a_copy_there_and_back(running: Running) -> None:
    store = running.store()
    assert store.updates() is None
    with pytest.raises(UserError, match="it has no model yet"):
        store.model()
    data = encoded(model(7))
    store.keep(data, 7)
    assert store.updates() == running.kept.updates == updates_in(running.kept.path) == 7
    assert store.model() == data == running.kept.path.read_bytes()
    later = encoded(model(9, value=3.0))
    store.keep(later, 9)
    store.keep(later, 9)
    assert store.model() == later
    assert running.kept.copies == 3


def test_an_older_model_does_not_take_the_place_of_a_newer_one(running: Running) -> None:
    store = running.store()
    store.keep(encoded(model(9)), 9)
    with pytest.raises(UserError, match="it has a model with 9 updates, and this one has 8: it keeps the newer one"):
        store.keep(encoded(model(8)), 8)
    with pytest.raises(UserError, match="this model has not 10 updates"):
        store.keep(encoded(model(3)), 10)
    assert updates_in(running.kept.path) == 9


def test_what_is_no_model_is_not_kept(running: Running) -> None:
    with pytest.raises(UserError, match="no replica of a model"):
        running.store().keep(b"nothing of the kind", 7)
    assert [path.name for path in running.kept.path.parent.iterdir()] == []


@pytest.mark.parametrize(
    ("tenant", "token", "line"),
    [
        ("job", "another token of tests", "the token is wrong"),
        ("other", TOKEN, "it is of the job job, and not of 'other'"),
    ],
)
def test_a_stranger_is_refused_and_changes_nothing(running: Running, tenant: str, token: str, line: str) -> None:
    store = running.store(tenant, token)
    for ask in (store.updates, store.model, lambda: store.keep(encoded(model()), 7)):
        with pytest.raises(UserError, match=f"^replica {running.server.address}: {line}$"):
            ask()
    assert not running.kept.path.exists()


def test_who_breaks_off_is_no_news_and_a_failure_of_ours_is(
    running: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for error, said in ((ConnectionResetError("gone"), []), (KeyError("updates"), ["KeyError: 'updates'"])):

        def fail(updates: int, error: Exception = error) -> str:
            raise error

        monkeypatch.setattr(running.kept, "older", fail)
        with caplog.at_level(logging.WARNING, logger="prophet_scheduler"), pytest.raises(OSError):
            running.store().keep(encoded(model()), 7)
        lines = [record.message for record in caplog.records]
        assert lines == [f"Prophet: the replica has not answered a request: {text}" for text in said]


@pytest.mark.parametrize("length", [str(1 << 40), "9" * 5000])
def test_without_a_proof_nothing_of_a_body_is_read(running: Running, length: str) -> None:
    host, port = running.server.address.split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=LONG_S)
    connection.putrequest("PUT", MODEL)
    connection.putheader("Content-Length", length)
    connection.endheaders()
    assert connection.getresponse().status == 403
    connection.close()


def test_one_who_has_not_the_token_is_not_taken_for_the_replica(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = running.store()
    monkeypatch.setattr(running.server, "token", "another token of tests")
    monkeypatch.setattr(running.server, "proves", lambda request: True)
    with pytest.raises(UserError, match="what answers there has not the token of job"):
        store.updates()


def answer(own: socket.socket) -> bytes:
    """All that comes until the other end has closed it."""
    pieces = []
    try:
        while piece := own.recv(1 << 16):
            pieces.append(piece)
    except ConnectionResetError:
        pass
    return b"".join(pieces)


def until(holds: Callable[[], bool]) -> None:
    ends_s = time.monotonic() + LONG_S
    while not holds():
        assert time.monotonic() < ends_s


def threads() -> int:
    return sum(thread.name == "prophet-replica" for thread in threading.enumerate())


def test_many_strangers_who_drip_take_no_thread_and_keep_no_worker_out(running: Running) -> None:
    head = b"PUT /model HTTP/1.1\r\nX: " + b"a" * 4000
    strangers = [running.connect(head) for _ in range(2 * MOST_STRANGERS)]
    try:
        store = running.store()
        assert store.updates() is None
        for own in strangers[-MOST_STRANGERS // 2 :]:
            own.sendall(b"a")
        store.keep(encoded(model(7)), 7)
        assert store.updates() == 7
        until(lambda: threads() == 0)  # those of the answers end
        assert len(running.server._hub) <= MOST_STRANGERS
    finally:
        for own in strangers:
            own.close()


def test_a_stranger_has_so_much_time_and_no_more(tmp_path: Path) -> None:
    running = Running(tmp_path, stranger_s=0.2)
    try:
        for said in (b"", b"G", b"GET /state HTTP/1.1\r\n", b"GET /state HTTP/1.1\r\nX: 1\r\n"):
            with running.connect(said) as own:
                assert answer(own) == b""
    finally:
        running.stop()


@pytest.mark.parametrize(
    "said",
    [
        b"GET /state HTTP/1.1\r\n" + b"".join(b"H%d: 1\r\n" % number for number in range(200)) + b"\r\n",
        b"GET /state HTTP/1.1\r\nX: " + b"a" * MOST_HEAD_BYTES,
        b"a" * 2 * MOST_HEAD_BYTES,
        b"GET  /state HTTP/1.1\r\n\r\n",
        b"\r\n\r\n",
        b"\xff\xfe /state HTTP/1.1\r\n\r\n",
    ],
    ids=["many headers", "a long header", "no line", "two spaces", "nothing", "no letters"],
)
def test_what_is_no_request_is_refused_and_read_no_further(running: Running, said: bytes) -> None:
    with running.connect(said) as own:
        own.shutdown(socket.SHUT_WR)
        said_back = answer(own)
    assert said_back.startswith(b"HTTP/1.1 400 ") and PROOF.encode() not in said_back
    assert running.store().updates() is None


def request(method: str, path: str, length: str = "0", more: bytes = b"", headers: Mapping[str, str] = {}) -> bytes:
    """A request with a proof."""
    said = {UPDATES: "", DIGEST: digest_of(b""), NONCE: "n", TENANT: "job", **headers}
    whole = int(length) if length.isdecimal() else 0
    proof = prove(TOKEN, method, path, "job", said[UPDATES], str(whole), said[DIGEST], said[NONCE])
    lines = [f"{method} {path} HTTP/1.1", f"Content-Length: {length}", f"{PROOF}: {proof}"]
    lines += [f"{name}: {value}" for name, value in said.items()]
    return "\r\n".join([*lines, "", ""]).encode() + more


@pytest.mark.parametrize(
    ("said", "status"),
    [
        (request("GET", STATE), 200),
        (request("GET", STATE) + request("GET", STATE), 200),
        (request("GET", STATE, "-5"), 200),
        (request("GET", STATE, "nan"), 200),
        (request("GET", "/" + "x" * 3000), 404),
        (request("DELETE", MODEL), 404),
        (request("PUT", MODEL, headers={UPDATES: "9" * 19}), 404),
        (request("PUT", MODEL, headers={UPDATES: "-1"}), 404),
        (request("PUT", MODEL, "5", b"model", headers={UPDATES: "1"}), 409),
        (request("PUT", MODEL, "9", b"model", headers={UPDATES: "1"}), 409),
        (request("GET", STATE, headers={NONCE: "another"}).replace(b": another", b": n"), 403),
    ],
    ids=[
        "as it is",
        "two at once",
        "a negative length",
        "a length that is none",
        "a long path",
        "no such method",
        "absurd updates",
        "negative updates",
        "another body than was said",
        "a body that ends early",
        "another nonce",
    ],
)
def test_odd_requests_get_one_answer_each(running: Running, said: bytes, status: int) -> None:
    with running.connect(said) as own:
        own.shutdown(socket.SHUT_WR)
        back = answer(own)
    assert back.startswith(b"HTTP/1.1 %d " % status) and back.count(b"HTTP/1.1 ") == 1
    assert (PROOF.encode() in back) == (status != 403)
    assert list(running.kept.path.parent.iterdir()) == []


def test_so_many_are_served_at_once_and_one_more_comes_again(running: Running) -> None:
    busy = [running.connect(request("PUT", MODEL, "9", headers={UPDATES: "1"})) for _ in range(MOST_SERVED)]
    until(lambda: threads() == MOST_SERVED)
    with running.connect(request("GET", STATE)) as own:
        assert answer(own) == b""
    for own in busy:
        own.close()
    until(lambda: threads() == 0)
    assert running.store().updates() is None


def test_whatever_bytes_come_a_worker_is_served(running: Running) -> None:
    whole = request("PUT", MODEL, "3", b"abc", headers={UPDATES: "1"})

    @given(st.binary(max_size=40), st.integers(0, len(whole)), st.booleans())
    def stranger(data: bytes, place: int, more: bool) -> None:
        with running.connect(whole[:place] + data + whole[place:] * more) as own:
            own.shutdown(socket.SHUT_WR)
            back = answer(own)
        assert not back.startswith(b"HTTP/1.1 200")

    stranger()
    assert running.store().updates() is None


def test_of_one_who_is_no_replica_little_is_read() -> None:
    with listener_at("127.0.0.1", 0) as listener:
        host, port = listener.getsockname()[:2]
        pieces = []

        def answers() -> None:
            own, _ = listener.accept()
            with own, contextlib.suppress(OSError):
                own.recv(1 << 16)
                own.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 999999999999\r\n\r\n")
                while True:
                    own.sendall(b"x" * (1 << 16))
                    pieces.append(1)

        thread = threading.Thread(target=answers)
        thread.start()
        with pytest.raises(UserError, match="what answers there has not the token of job"):
            ReplicaStore(host, port, "job", TOKEN, LONG_S).model()
        thread.join(LONG_S)
    assert len(pieces) < 1000


def test_one_that_is_not_there_is_an_error_of_the_system(tmp_path: Path) -> None:
    replica = Running(tmp_path)
    store = replica.store()
    replica.stop()
    with pytest.raises(OSError):
        store.updates()


def test_a_replica_goes_on_from_its_file_and_leaves_no_parts(tmp_path: Path) -> None:
    (tmp_path / "model.npz").write_bytes(encoded(model(7)))
    (tmp_path / "model.npz.123.part").write_bytes(b"of one that was killed")
    kept = KeptModel(tmp_path / "model.npz")
    assert kept.updates == 7
    assert [path.name for path in tmp_path.iterdir()] == ["model.npz"]
