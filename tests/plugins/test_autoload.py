"""The autoload in fresh interpreters: inert when unset, and one warning where it cannot act."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture
def fake_byteps(tmp_path: Path) -> Path:
    """A folder with an importable BytePS of a release that Prophet does not know."""
    for part in ("torch", "mxnet"):
        package = tmp_path / "byteps" / part
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("DistributedOptimizer = 'stock'\n")
    (tmp_path / "byteps" / "__init__.py").write_text("")
    info = tmp_path / "byteps-0.9.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: byteps\nVersion: 0.9\n")
    return tmp_path


def python(code: str, folder: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("BYTEPS_", "PROPHET_"))}
    env = {**clean, "PYTHONPATH": str(folder), **environ}
    return subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, env=env, timeout=60)


def test_unset_means_that_nothing_of_prophet_is_imported(fake_byteps: Path) -> None:
    done = python("import sys, byteps.torch; assert not [m for m in sys.modules if 'prophet' in m]", fake_byteps)
    assert (done.returncode, done.stderr) == (0, "")


def test_set_without_byteps_in_the_program_costs_only_the_import_hook(fake_byteps: Path) -> None:
    code = "import sys; assert 'numpy' not in sys.modules and 'prophet.plugins.byteps.autoload' in sys.modules"
    done = python(code, fake_byteps, BYTEPS_SCHEDULER="prophet")
    assert (done.returncode, done.stderr) == (0, "")


IMPORT = "import byteps.torch as bps; assert bps.DistributedOptimizer == 'stock'; print('trains')"


@pytest.mark.parametrize("part", ["torch", "mxnet"])
def test_an_unknown_byteps_is_one_warning_and_stock_behaviour(part: str, fake_byteps: Path) -> None:
    done = python(IMPORT.replace("torch", part), fake_byteps, BYTEPS_SCHEDULER="prophet")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "trains\n"
    assert len(done.stderr.splitlines()) == 1
    assert "BytePS 0.9 is unknown" in done.stderr


def test_an_unknown_policy_is_one_warning_that_lists_the_known_ones(fake_byteps: Path) -> None:
    done = python(IMPORT, fake_byteps, BYTEPS_SCHEDULER="oracle")
    assert done.returncode == 0, done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert "oracle" in done.stderr
    for policy in ("fifo", "p3", "bytescheduler", "prophet"):
        assert policy in done.stderr


def test_a_wrong_setting_is_one_warning_that_names_it(fake_byteps: Path) -> None:
    done = python(IMPORT, fake_byteps, BYTEPS_SCHEDULER="prophet", PROPHET_WATCHDOG_S="soon")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "trains\n"
    assert len(done.stderr.splitlines()) == 1
    assert "PROPHET_WATCHDOG_S is 'soon'" in done.stderr


@pytest.mark.engine
def test_only_the_first_part_of_byteps_in_a_process_is_scheduled(tmp_path: Path) -> None:
    """The other way round, torch does not survive being imported after stock byteps.mxnet."""
    pytest.importorskip("mxnet")
    code = """
import byteps.torch as scheduled
assert scheduled.DistributedOptimizer.__wrapped__
import byteps.mxnet as stock
assert not hasattr(stock.DistributedTrainer.__init__, "__wrapped__")
print("trains")
"""
    done = python(code, tmp_path, BYTEPS_SCHEDULER="prophet")
    assert (done.returncode, done.stdout) == (0, "trains\n"), done.stderr
    words = [line for line in done.stderr.splitlines() if "Prophet" in line]
    assert words == ["Prophet schedules byteps.torch in this process, so byteps.mxnet runs with stock BytePS"]
