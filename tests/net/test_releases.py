"""Releases of BytePS beside the newest: the hook takes over each, and a job learns what it learns without Prophet.

They have to be built first, some minutes each, so they are asked for: `make releases` sets RELEASES=required.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from rich.console import Console

from prophet_byteps.build.build import provide
from prophet_byteps.build.rules import NEWEST, RELEASES, Release
from prophet_byteps.build.store import Store
from prophet_byteps.build.toolchain import find_toolchain
from prophet_scheduler.lab.testbed import Testbed
from support.roles import WORKERS, Ended, run_job

pytestmark = [
    pytest.mark.engine,
    pytest.mark.netns,
    pytest.mark.skipif(os.environ.get("RELEASES") != "required", reason="older releases of BytePS: make releases"),
]

JOB = str(Path(__file__).with_name("jobs") / "small_job.py")
PORT = 24300
LINK_BPS = 400e6
OLDER = [release for release in RELEASES.values() if release is not NEWEST]
DOCTOR = "from prophet_byteps import faults, hook; print(hook.check_compatibility(), faults.check_faults()[1])"


@pytest.fixture(scope="module", params=OLDER, ids=lambda release: str(release.version))
def release(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Release, Path]:
    """A release, and the folder in which its PyTorch part is installed."""
    release: Release = request.param
    console = Console(file=io.StringIO())
    wheel = provide(Store.of_user(), find_toolchain().alone("torch"), console, release=release)
    folder = tmp_path_factory.mktemp("byteps")
    zipfile.ZipFile(wheel).extractall(folder)
    return release, folder


@pytest.fixture
def installed(release: tuple[Release, Path], monkeypatch: pytest.MonkeyPatch) -> Release:
    """The release is the BytePS of all processes that are started."""
    monkeypatch.setenv("PYTHONPATH", str(release[1]))
    return release[0]


def job(testbed: Testbed, folder: Path, port: int, settings: dict[str, str]) -> list[Ended]:
    ends = run_job(testbed, folder, port, (JOB, "12"), dict.fromkeys(WORKERS, settings))
    assert [end.status for end in ends] == [0, 0], "\n".join(end.log[-2000:] for end in ends)
    return ends


def test_doctor_knows_it_by_what_it_finds(installed: Release) -> None:
    done = subprocess.run([sys.executable, "-P", "-c", DOCTOR], capture_output=True, text=True, check=True)
    stages = ", no compression" if installed.version == "0.2.4" else ""
    faults = 9 - ("summing" in installed.without)  # bpslaunch is that of this Python, and MXNet's part is not built
    line = f"(True, 'BytePS {installed.version} (torch, new C++ ABI{stages})')"
    assert done.stdout == f"{line} all {faults} known faults are corrected\n"


def test_a_job_learns_what_it_learns_without_prophet(installed: Release, testbed: Testbed, tmp_path: Path) -> None:
    port = PORT + 2 * OLDER.index(installed)
    stock = job(testbed, tmp_path / "stock", port, {})
    on = {"BYTEPS_SCHEDULER": "prophet", "PROPHET_STATUS_OUT": "status.json"}
    ends = job(testbed, tmp_path / "prophet", port + 1, on)
    assert len({line for end in [*stock, *ends] for line in end.lines("weights")}) == 1
    for worker, end in zip(WORKERS, ends, strict=True):
        assert end.lines("Prophet") == []
        status = json.loads((tmp_path / "prophet" / worker / "status.json").read_text())
        assert status["stepped_aside"] == ""
        assert status["hook"]["watchdog_releases"] == 0
        assert status["hook"]["tasks"] > 0
