"""The autoload in fresh interpreters: inert when unset, a warning where it cannot act, an end for a wrong setting."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from support.programs import without_switches

SWITCHED_ON = {"BYTEPS_SCHEDULER": "prophet"}
CASES = Path(__file__).with_name("autoload_cases.py")
WITHOUT_LIBRARY = Path(__file__).with_name("without_library")
"""A folder with an importable BytePS that has no library which the hook could know."""


def run(
    case: str, part: str = "", environ: Mapping[str, str] = SWITCHED_ON, folder: Path = WITHOUT_LIBRARY
) -> subprocess.CompletedProcess[str]:
    """Runs a program of autoload_cases.py, with what `folder` holds in front of what is installed."""
    env = {**without_switches(), "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1", **environ}
    command = [sys.executable, "-P", str(CASES), case, *filter(None, [part])]
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=240)


def test_unset_imports_nothing_of_prophet_and_set_without_byteps_costs_only_the_import_hook() -> None:
    for done in (run("without_prophet", "torch", {}), run("without_byteps")):
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("part", "size"), [("torch", 4_096_000), ("mxnet", 524_288)])
def test_the_front_end_is_installed_without_the_hook(part: str, size: int) -> None:
    """Tensors must be those of the other workers; only the order may be BytePS's."""
    pytest.importorskip(part)
    done = run("trains_with_the_front_end", part)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"trains\n{size}\n"
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert f"this BytePS was built without its {part} part" in done.stderr


def test_a_front_end_that_cannot_be_installed_leaves_bytepss_own(tmp_path: Path) -> None:
    folder = shutil.copytree(WITHOUT_LIBRARY, tmp_path / "release")
    with (folder / "byteps" / "torch" / "__init__.py").open("a") as file:
        file.write("\n\ndel Compression, shutdown, suspend\n")
    done = run("trains_with_bytepss_own", "torch", folder=folder)
    assert (done.returncode, done.stdout) == (0, "trains\n"), done.stderr
    assert "its front end cannot be installed" in done.stderr


def refused(done: subprocess.CompletedProcess[str]) -> str:
    """The one line of a process that ended at the import."""
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("Prophet: ")
    return line


def test_an_unknown_policy_ends_with_one_line_that_lists_the_known_ones() -> None:
    line = refused(run("trains", "torch", {"BYTEPS_SCHEDULER": "oracle"}))
    assert line.startswith("Prophet: BYTEPS_SCHEDULER: unknown policy 'oracle'; known policies are ")
    for word in ("oracle", "fifo", "p3", "bytescheduler", "prophet"):
        assert word in line


@pytest.mark.parametrize("part", ["torch", "mxnet"])
@pytest.mark.parametrize(("name", "text"), [("PROPHET_WATCHDOG_S", "soon"), ("BYTEPS_PARTITION_BYTES", "4MB")])
def test_a_wrong_setting_ends_with_one_line_that_names_it(part: str, name: str, text: str) -> None:
    done = run("prints_first", part, {**SWITCHED_ON, name: text})
    assert done.stdout == "kept", "what was printed before is lost"
    done.stdout = ""
    assert refused(done).startswith(f"Prophet: {name} is '{text}'; it must be")


def test_a_file_that_cannot_be_written_ends_it_before_the_job_and_not_after(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = run("trains", "torch", {**SWITCHED_ON, "PROPHET_STATUS_OUT": str(tmp_path / "file" / "status.json")})
    assert refused(done) == f"Prophet: PROPHET_STATUS_OUT: {tmp_path / 'file'} is not a folder; name another"
