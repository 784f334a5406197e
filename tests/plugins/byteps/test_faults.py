"""Tests of how an installed BytePS's files show which of the known faults it has."""

from __future__ import annotations

import importlib.machinery
from pathlib import Path

import pytest

from prophet_byteps import faults
from prophet_byteps.build.rules import CORRECTIONS
from prophet_byteps.faults import State, look, parts_of
from prophet_byteps.library import byteps_folder

BY_NAME = {correction.name: correction for correction in CORRECTIONS}
OF_PS_LITE = {"receiving", "starting", "sending", "stopping", "freeing", "outliving"}
ASYNCHRONOUS = {"answering", "mixing"}
"""Faults of a server's asynchronous mode."""
SUFFIX = importlib.machinery.EXTENSION_SUFFIXES[0]


def library(folder: Path, part: str, *names: bytes) -> Path:
    """Write a part of BytePS into `folder`, with these names in it."""
    path = folder / part / f"c_lib{SUFFIX}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\x7fELF\0" + b"\0".join((*names, b"the end")))
    return path


def as_released(part: str) -> list[bytes]:
    """Return the names by which the code of all faults is seen in a part."""
    return [correction.seen_by.strip(b"\0") for correction in CORRECTIONS if part in correction.parts]


def marks(part: str, *without: str) -> list[bytes]:
    return [fault.mark.encode() for fault in CORRECTIONS if part in fault.parts and fault.name not in without]


def states(folder: Path) -> dict[str, State]:
    return {fault.correction.name: fault.state for fault in look(parts_of(folder))}


@pytest.fixture(autouse=True)
def installed_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """BytePS is where the test puts it, and the launcher of this Python is not the one in question."""
    monkeypatch.setattr(faults, "byteps_folder", lambda: tmp_path)
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path / "scripts"))


def check() -> tuple[bool, str, tuple[tuple[str, str], ...]]:
    found = faults.check_faults()
    assert found is not None
    return found


def test_a_part_with_all_marks_has_no_faults(tmp_path: Path) -> None:
    for part in ("torch", "server"):
        library(tmp_path, part, *as_released(part), *marks(part))
    corrected = {*OF_PS_LITE, "summing", "copying", "placing", *ASYNCHRONOUS}
    assert states(tmp_path) == dict.fromkeys(corrected, State.CORRECTED)


def test_a_part_without_marks_is_as_released(tmp_path: Path) -> None:
    library(tmp_path, "mxnet", *as_released("mxnet"))
    there = {*OF_PS_LITE, "copying", "placing", "asking", "counting"}
    assert states(tmp_path) == dict.fromkeys(there, State.AS_RELEASED)


def test_a_server_as_released_is_not_hidden_by_a_corrected_worker(tmp_path: Path) -> None:
    library(tmp_path, "torch", *as_released("torch"), *marks("torch"))
    library(tmp_path, "server", *as_released("server"), *marks("server", "freeing"))
    there = states(tmp_path)
    assert {name for name, state in there.items() if state is State.AS_RELEASED} == {"freeing"}


def test_the_state_is_unknown_without_the_code(tmp_path: Path) -> None:
    library(tmp_path, "server", BY_NAME["summing"].seen_by + b"9SerializeE")
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / f"c_lib{SUFFIX}").touch()
    there = states(tmp_path)
    assert there["summing"] is State.AS_RELEASED
    assert {there[name] for name in ("starting", "copying", "placing")} == {State.UNKNOWN}


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("def allocate_cpu(): ...\nargs=[\n    i, local_size, command, allocations[i]])\n", State.AS_RELEASED),
        (f"def allocate_cpu(): ...\n{BY_NAME['launching'].rules[0].new}\n", State.CORRECTED),
        ("def allocate_cpu(): ...\nin another way\n", State.UNKNOWN),
        ("before there were cores for each process\n", None),
    ],
)
@pytest.mark.parametrize("place", ["bin", "scripts"])
def test_the_launcher_is_read(text: str, state: State | None, place: str, tmp_path: Path) -> None:
    script = tmp_path / place / "bpslaunch"
    script.parent.mkdir()
    script.write_text(text)
    assert states(tmp_path / "byteps").get("launching") is state


def test_a_line_and_a_row_for_each_that_is_there(tmp_path: Path) -> None:
    library(tmp_path, "torch", *as_released("torch"), *marks("torch", "starting", "freeing"))
    none, line, rows = check()
    assert not none
    assert line.startswith("2 of 8 known faults are present, as far as can be seen; ")
    assert "python -m prophet_byteps.build install" in line
    assert dict(rows) == {name: BY_NAME[name].effect for name in ("starting", "freeing")}


def test_users_of_gpus_are_told_of_the_build_for_them(tmp_path: Path) -> None:
    library(tmp_path, "torch", *as_released("torch"), b"byteps_torch_push_pull_async_torch_cuda_FloatTensor")
    assert "python -m prophet_byteps.build build --cuda" in check()[1]


def test_an_unknown_state_is_reported_as_such(tmp_path: Path) -> None:
    library(tmp_path, "server", *marks("server", "starting"))
    _, line, rows = check()
    assert "0 of 9 known faults are present, as far as can be seen, and 1 cannot be determined" in line
    assert rows == (("starting", "cannot tell whether about one start in five hangs"),)


def test_a_part_without_faults_is_one_line(tmp_path: Path) -> None:
    library(tmp_path, "server", *as_released("server"), *marks("server"))
    assert faults.check_faults() == (True, "all 9 known faults are corrected", ())


def test_faults_are_unknown_without_byteps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "byteps_folder", lambda: None)
    assert faults.check_faults() is None


@pytest.mark.engine
def test_the_cpu_build_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("byteps")
    monkeypatch.undo()
    folder = byteps_folder()
    assert folder is not None
    assert {name: state for name, state in states(folder).items() if state is not State.CORRECTED} == {}
