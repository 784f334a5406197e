"""The file of a replica: it always holds a whole model, and no job overwrites it with an older one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from prophet_mlfabric.replica import JobReplica, ReplicaModel, keep, load
from prophet_scheduler.core.errors import UserError


def model(updates: int = 7, before: int = 0, value: float = 1.5) -> ReplicaModel:
    weights = {"layer.weight": np.full((3, 2), value, np.float32), "file": np.zeros((), np.float32)}
    return ReplicaModel(weights, (updates, 0), before, 2.5)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "model.npz"


def test_a_kept_model_loads_unchanged(file: Path) -> None:
    first = model(7, before=5)
    keep(first, file)
    back = load(file, "here")
    assert list(back.weights) == ["layer.weight", "file"]
    assert all(np.array_equal(back.weights[name], first.weights[name]) for name in first.weights)
    assert (back.counts, back.before, back.bound, back.updates) == ((7, 0), 5, 2.5, 12)
    assert load(file, "here", with_weights=False).updates == 12


@pytest.mark.parametrize("change", ["nothing", "text", "cut off", "a letter", "another file", "other weights"])
def test_damaged_and_foreign_files_are_refused(file: Path, change: str) -> None:
    keep(model(), file)
    whole = file.read_bytes()
    if change == "another file":
        np.savez(file, weights=np.zeros(3))
    elif change == "other weights":
        np.savez(file, schema=1, counts=[1], before=0, bound=1.0, **{"weights/a": np.zeros(2)})
    else:
        middle = whole.index(b"\x00\x00\xc0\x3f")
        changed = whole[:middle] + b"?" + whole[middle + 1 :]
        file.write_bytes({"nothing": b"", "text": b"no", "cut off": whole[:-30], "a letter": changed}[change])
    with pytest.raises(UserError, match=r"model\.npz: not a replica of a model \(.+\); name a file of") as caught:
        load(file, str(file))
    assert "\n" not in str(caught.value)


def test_an_older_model_does_not_replace_a_newer_one(file: Path) -> None:
    keep(model(9), file)
    keep(model(9, value=3.0), file)
    with pytest.raises(UserError, match="has a model with 9 updates, and this one has 8"):
        keep(model(8), file)
    assert load(file, "here").weights["layer.weight"][0, 0] == 3.0


def test_a_full_disk_leaves_the_old_model(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(model(7), file)

    def full(file: object, **arrays: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("numpy.savez", full)
        with pytest.raises(OSError, match="No space left"):
            keep(model(8), file)
    assert load(file, "here").updates == 7
    assert [path.name for path in file.parent.iterdir()] == ["model.npz"]


def test_a_job_without_variables_has_no_replica() -> None:
    assert JobReplica.from_environ({}) == JobReplica()


@pytest.mark.parametrize(
    ("environ", "line"),
    [
        ({"PROPHET_RESUME": "/none"}, "^PROPHET_RESUME: /none: there is no such file$"),
        ({"PROPHET_RESUME": "{text}"}, "^PROPHET_RESUME: .+/text: not a replica of a model"),
        ({"PROPHET_REPLICA": "{text}"}, "^PROPHET_REPLICA: .+/text: not a replica of a model"),
        ({"PROPHET_REPLICA": "{folder}"}, "^PROPHET_REPLICA: .+ is a folder; name a file in it$"),
        (
            {"PROPHET_REPLICA": "{model}"},
            "has a model with 7 updates, but this job begins with 0: begin with that model",
        ),
        ({"PROPHET_REPLICA": "{model}", "PROPHET_RESUME": "{older}"}, "but this job begins with 6"),
    ],
)
def test_wrong_replicas_are_refused_at_the_start(file: Path, environ: dict[str, str], line: str) -> None:
    places = {"folder": file.parent, "text": file.with_name("text"), "model": file, "older": file.with_name("older")}
    places["text"].touch()
    keep(model(7), file)
    keep(model(6), places["older"])
    with pytest.raises(UserError, match=line):
        JobReplica.from_environ({name: text.format(**places) for name, text in environ.items()})


def test_only_worker_0_has_the_file_and_the_model(file: Path) -> None:
    keep(model(7), file)
    left = file.with_name("model.npz.123.part")
    left.touch()
    environ = {"PROPHET_REPLICA": str(file), "PROPHET_RESUME": str(file)}
    ours = JobReplica.from_environ(environ)
    assert (ours.file, ours.where, ours.of_one_model) == (file, str(file), True)
    assert ours.model is not None and ours.model.updates == 7
    assert not left.exists(), "a killed process had left it"
    elsewhere = {"PROPHET_REPLICA": "/none/model", "PROPHET_RESUME": "/none", "DMLC_WORKER_ID": "1"}
    assert JobReplica.from_environ(elsewhere) == JobReplica(of_one_model=True)
