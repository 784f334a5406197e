"""A replica over real sockets on this machine: what it keeps, whom it refuses, and that its file is always a model."""

from __future__ import annotations

import http.client
import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from prophet.core.errors import UserError
from prophet.mlfabric.replica_model import ReplicaModel, decoded, encoded, load, updates_in
from prophet.mlfabric.replica_server import KeptModel, ReplicaServer
from prophet.mlfabric.replica_store import MODEL, ReplicaStore

TOKEN = "a token of the tests"
LONG_S = 60.0
"""Nothing takes so long."""


def model(updates: int = 7, before: int = 0, value: float = 1.5) -> ReplicaModel:
    weights = {"layer.weight": np.full((3, 2), value, np.float32), "file": np.zeros((), np.float32)}
    return ReplicaModel(weights, (updates, 0), before, 2.5)


class Running:
    """A replica in a thread, with a file in a folder."""

    def __init__(self, folder: Path) -> None:
        self.kept = KeptModel(folder / "model.npz")
        self.server = ReplicaServer("127.0.0.1", 0, "job", TOKEN, self.kept)
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    def store(self, tenant: str = "job", token: str = TOKEN) -> ReplicaStore:
        host, port = self.server.address.split(":")
        return ReplicaStore(host, int(port), tenant, token, LONG_S)

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
        with caplog.at_level(logging.WARNING, logger="prophet"), pytest.raises(OSError):
            running.store().keep(encoded(model()), 7)
        lines = [record.message for record in caplog.records]
        assert lines == [f"the replica has not answered a request: {text}" for text in said]


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
