"""A replica over real sockets on this machine: what it keeps, whom it refuses, and that its file is always a model."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from prophet_mlfabric.exchange import Asked, key_of
from prophet_mlfabric.replica import KeptModel, ReplicaModel, ReplicaStore, encoded, load, replica_server
from prophet_scheduler.core.errors import UserError

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
        self.server = replica_server("127.0.0.1", 0, "job", TOKEN, self.kept)
        self.thread = threading.Thread(target=self.server.serve)
        self.thread.start()

    def store(self, tenant: str = "job", token: str = TOKEN) -> ReplicaStore:
        return ReplicaStore(*self.server.address, tenant, token, LONG_S)

    def stop(self) -> None:
        self.server.stop()
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
    for back in (load(io.BytesIO(encoded(first)), "here"), load(file, "here")):
        assert list(back.weights) == ["layer.weight", "file"]
        assert all(np.array_equal(back.weights[name], first.weights[name]) for name in first.weights)
        assert (back.counts, back.before, back.bound, back.updates) == ((7, 0), 5, 2.5, 12)
    assert load(file, "here").updates == 12


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
    with pytest.raises(UserError, match=r"model\.npz: not a replica of a model \(.+\); name the file of") as caught:
        load(file, str(file))
    assert "\n" not in str(caught.value)


def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none: cannot be read \(No such file or directory\)"):
        load(tmp_path / "none", "none")


def test_a_copy_there_and_back(running: Running) -> None:
    store = running.store()
    assert store.updates() is None
    with pytest.raises(UserError, match="it has no model yet"):
        store.model()
    data = encoded(model(7))
    store.keep(data, 7)
    assert store.updates() == running.kept.updates == load(running.kept.path, "here").updates == 7
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
    with pytest.raises(UserError, match="this model does not have 10 updates"):
        store.keep(encoded(model(3)), 10)
    assert load(running.kept.path, "here").updates == 9


def test_what_is_no_model_is_not_kept(running: Running) -> None:
    with pytest.raises(UserError, match="not a replica of a model"):
        running.store().keep(b"nothing of the kind", 7)
    assert [path.name for path in running.kept.path.parent.iterdir()] == []


@pytest.mark.parametrize(("tenant", "token"), [("job", "another token of tests"), ("other", TOKEN)])
def test_a_stranger_is_refused_and_changes_nothing(running: Running, tenant: str, token: str) -> None:
    store = running.store(tenant, token)
    host, port = running.server.address
    for ask in (store.updates, store.model, lambda: store.keep(encoded(model()), 7)):
        with pytest.raises(UserError, match=f"^replica {host}:{port}: the token is wrong$"):
            ask()
    assert not running.kept.path.exists()


def test_what_nobody_can_ask_for_is_refused(running: Running) -> None:
    running.store().keep(encoded(model()), 7)
    with (
        Asked(running.server.address, key_of("job", TOKEN), 9) as asked,
        pytest.raises(UserError, match="no such request"),
    ):
        asked.answer()


def test_a_disk_that_is_full_is_one_line_and_leaves_the_old_model(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    running.store().keep(encoded(model(7)), 7)

    def full(path: Path) -> None:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr("prophet_mlfabric.replica.whole_file", full)
    with pytest.raises(UserError, match=r"could not write the model \(No space left on device\)"):
        running.store().keep(encoded(model(8)), 8)
    assert running.store().updates() == load(running.kept.path, "here").updates == 7


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
