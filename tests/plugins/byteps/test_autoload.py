"""The autoload in fresh interpreters: inert when unset, a warning where it cannot act, an end for a wrong setting."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

COMMON = """
def init(lazy=True): return "started"
def resume(*args): return "resumed"
def size(): return 1
"""
PARTS = {
    "torch": COMMON
    + """
class Compression: none = None
def DistributedOptimizer(*args): return "stock"
def shutdown(): pass
def suspend(): pass
""",
    "mxnet": COMMON
    + """
def byteps_push_pull(*args, **kwargs): pass
def byteps_declare_tensor(name, **kwargs): pass
class DistributedTrainer:
    def _allreduce_grads(self): pass
    def _init_params(self): pass
""",
}


@pytest.fixture
def fake_byteps(tmp_path: Path) -> Path:
    """A folder with an importable BytePS of a release that Prophet does not know."""
    for part, text in PARTS.items():
        package = tmp_path / "byteps" / part
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(text)
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
    code = "import sys, byteps.torch; assert not [m for m in sys.modules if m.startswith('prophet')]"
    done = python(code, fake_byteps)
    assert (done.returncode, done.stderr) == (0, "")


def test_set_without_byteps_in_the_program_costs_only_the_import_hook(fake_byteps: Path) -> None:
    code = "import sys; assert 'numpy' not in sys.modules and 'prophet_byteps.autoload' in sys.modules"
    done = python(code, fake_byteps, BYTEPS_SCHEDULER="prophet")
    assert (done.returncode, done.stderr) == (0, "")


TRAIN = "import byteps.PART as bps; assert bps.init() == 'started'; print('trains')"


@pytest.mark.parametrize(
    ("part", "replaced"), [("torch", "DistributedOptimizer"), ("mxnet", "DistributedTrainer._allreduce_grads")]
)
def test_without_the_hook_the_front_end_is_there_all_the_same(part: str, replaced: str, fake_byteps: Path) -> None:
    """What goes over the wire must be what the other workers have; only the order may be BytePS's."""
    pytest.importorskip(part)
    check = f"; assert bps.{replaced}.__wrapped__; import os; print(os.environ['BYTEPS_PARTITION_BYTES'])"
    done = python(TRAIN.replace("PART", part) + check, fake_byteps, BYTEPS_SCHEDULER="prophet")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "trains\n131072\n"
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert "BytePS 0.9 is unknown" in done.stderr


def test_a_front_end_that_cannot_be_installed_leaves_bytepss_own(fake_byteps: Path) -> None:
    (fake_byteps / "byteps" / "torch" / "__init__.py").write_text(COMMON + "DistributedOptimizer = 'stock'\n")
    code = TRAIN.replace("PART", "torch") + "; assert bps.DistributedOptimizer == 'stock'"
    done = python(code, fake_byteps, BYTEPS_SCHEDULER="prophet")
    assert (done.returncode, done.stdout) == (0, "trains\n"), done.stderr
    assert "its front end cannot be installed" in done.stderr


def refused(done: subprocess.CompletedProcess[str]) -> str:
    """The one line of a process that ended at the import."""
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("prophet: ")
    return line


def test_an_unknown_policy_ends_with_one_line_that_lists_the_known_ones(fake_byteps: Path) -> None:
    line = refused(python(TRAIN.replace("PART", "torch"), fake_byteps, BYTEPS_SCHEDULER="oracle"))
    for word in ("oracle", "fifo", "p3", "bytescheduler", "prophet"):
        assert word in line


@pytest.mark.parametrize("part", ["torch", "mxnet"])
@pytest.mark.parametrize(("name", "text"), [("PROPHET_WATCHDOG_S", "soon"), ("BYTEPS_PARTITION_BYTES", "4MB")])
def test_a_wrong_setting_ends_with_one_line_that_names_it(part: str, name: str, text: str, fake_byteps: Path) -> None:
    code = f"import sys; sys.stdout.write('kept'); import byteps.{part}"
    done = python(code, fake_byteps, BYTEPS_SCHEDULER="prophet", **{name: text})
    assert done.stdout == "kept", "what was printed before is lost"
    done.stdout = ""
    assert refused(done).startswith(f"prophet: {name} is '{text}'; it must be")


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
