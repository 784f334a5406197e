"""Errors that `make release` finds in the files of a distribution, without building one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from prophet_scheduler import __version__
from prophet_scheduler.core.errors import UserError
from tools.release import AUTOLOAD, check_changelog, outcome, run, sdist_problems, wheel_problems

TRACKED = [
    "setup.py",
    "prophet/prophet_scheduler/__init__.py",
    "prophet/prophet_scheduler/py.typed",
    "prophet/prophet_scheduler/core/_native.pyi",
    "prophet/prophet_scheduler/core/native/queue.h",
    "plugins/byteps/prophet_byteps/hook.py",
    "plugins/byteps/prophet_byteps/native/hook.cc",
    "plugins/byteps/prophet_byteps/build/include/nccl.h",
    "plugins/torch/prophet_ddp/reducer.py",
    "tests/conftest.py",
]
WHEEL = [
    AUTOLOAD,
    "prophet_scheduler/__init__.py",
    "prophet_scheduler/py.typed",
    "prophet_scheduler/core/_native.pyi",
    "prophet_scheduler/core/_native.cpython-311-x86_64-linux-gnu.so",
    "prophet_scheduler/lab/testbed/_relay.cpython-311-x86_64-linux-gnu.so",
    "prophet_byteps/hook.py",
    "prophet_byteps/_hook.cpython-311-x86_64-linux-gnu.so",
    "prophet_byteps/build/include/nccl.h",
    "prophet_ddp/reducer.py",
    f"prophet_scheduler-{__version__}.dist-info/METADATA",
]


def test_a_source_distribution_is_what_git_tracks() -> None:
    assert sdist_problems([*TRACKED, "PKG-INFO", "setup.cfg", "prophet_scheduler.egg-info/SOURCES.txt"], TRACKED) == []
    without_header = [name for name in TRACKED if not name.endswith("queue.h")]
    assert sdist_problems([*without_header, "notes.txt"], TRACKED) == [
        "the source distribution lacks prophet/prophet_scheduler/core/native/queue.h; name it in MANIFEST.in",
        "the source distribution has notes.txt, which git does not track",
    ]


def test_a_wheel_has_its_packages_and_nothing_else() -> None:
    assert wheel_problems(WHEEL, TRACKED) == []


@pytest.mark.parametrize("name", [name for name in WHEEL if "dist-info" not in name])
def test_what_a_wheel_lacks_is_named(name: str) -> None:
    (problem,) = wheel_problems([other for other in WHEEL if other != name], TRACKED)
    assert problem.startswith("the wheel lacks ") and name.startswith(problem.split()[-1].removesuffix("*.so"))


@pytest.mark.parametrize(
    "name", ["tests/conftest.py", "tools/release.py", "other.pth", "prophet_scheduler.libs/libstdc++-1234.so.6"]
)
def test_what_belongs_to_no_package_is_named(name: str) -> None:
    assert wheel_problems([*WHEEL, name], TRACKED) == [f"the wheel has {name}, which belongs to no package"]


def test_the_newest_entry_of_the_changelog_is_the_versions() -> None:
    check_changelog("# Changelog\n\n## 1.2.0 - unreleased\n\n## 1.1.0\n", "1.2.0")
    with pytest.raises(UserError, match=r"newest entry is '1\.1\.0 - 2026-01-02' and the version is 1\.2\.0"):
        check_changelog("# Changelog\n\n## 1.1.0 - 2026-01-02\n", "1.2.0")


def test_what_cannot_be_run_is_one_line() -> None:
    with pytest.raises(UserError, match=r"^/no/such/python cannot be run \(No such file or directory\)$"):
        run("/no/such/python", "-I")
    with pytest.raises(UserError, match=r"-c raise SystemExit\('it broke'\) ended with status 1: it broke$"):
        run(sys.executable, "-c", "raise SystemExit('it broke')")


@pytest.mark.parametrize(
    "environ", [{"CC": "false", "CXX": "false"}, {"PATH": ""}], ids=["that fails", "that is not there"]
)
def test_a_machine_without_a_compiler_is_told_so_in_one_line(environ: dict[str, str], tmp_path: Path) -> None:
    here = Path(__file__).parent
    build = [sys.executable, "setup.py", "--quiet", "build_py", "--build-lib", str(tmp_path / "built")]
    # Only an isolated build has pybind11.
    done = outcome(*build, cwd=here.parents[1], environ={"PYTHONPATH": str(here / "in_place_of_pybind11"), **environ})
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "error: Prophet cannot be compiled on this machine: it has no working C++ compiler; `apt-get install g++`, or "
        "name one in CC and CXX"
    )
    assert "Traceback" not in done.stderr and not (tmp_path / "built").exists()
