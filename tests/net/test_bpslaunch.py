"""The command of docs/enabling.md as it stands, through BytePS's own bpslaunch: whole jobs, stock and with Prophet."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import os
import re
import shutil
import sys
import time
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from prophet_scheduler.lab.testbed import Testbed
from support.roles import SERVERS, WORKERS, Job, side_by_side

pytestmark = pytest.mark.engine

BIN = Path(sys.executable).parent
LINK_BPS = None
LIMIT_S = 180.0
PORT = 23940
COMMAND = re.compile(r"^```\n(BYTEPS_SCHEDULER=prophet bpslaunch python train\.py)\n```$", re.MULTILINE)

TRAIN = Path(__file__).with_name("jobs") / "train.py"


def documented_command() -> str:
    match = COMMAND.search((Path(__file__).parents[2] / "docs/enabling.md").read_text(encoding="utf-8"))
    assert match is not None
    return match.group(1)


def launched(testbed: Testbed, folder: Path, port: int, command: str) -> list[dict[str, Any]]:
    """Starts every role with `bpslaunch`, the workers with `command` in a shell, and returns the workers' results."""
    path = {"PATH": f"{BIN}:{os.environ['PATH']}"}
    with Job(testbed, folder, port) as job:
        processes = {node: job.start(node, ["sh", "-c", "bpslaunch"], path) for node in SERVERS}
        for worker in WORKERS:
            shutil.copy(TRAIN, job.place(worker))
            processes[worker] = job.start(worker, ["sh", "-c", command], {**path, "PROPHET_STATUS_OUT": "status.json"})
        end = time.monotonic() + LIMIT_S
        try:
            for node in (*WORKERS, *SERVERS):
                status = processes[node].wait(max(0.1, end - time.monotonic()))
                assert status == 0, f"{node}: {(folder / node / 'log').read_text()[-2000:]}"
        finally:
            testbed.terminate_all()
    return [json.loads((folder / worker / "result.json").read_text()) for worker in WORKERS]


@pytest.mark.netns
def test_the_pages_command_trains_and_gives_stocks_bits(testbed: Testbed, beside: Testbed, tmp_path: Path) -> None:
    folders = tmp_path / "stock", tmp_path / "scheduled"
    command = documented_command()
    stock, scheduled = side_by_side(
        lambda: launched(testbed, folders[0], PORT, command.removeprefix("BYTEPS_SCHEDULER=prophet ")),
        lambda: launched(beside, folders[1], PORT, command),
    )
    assert len({result["weights"] for result in [*stock, *scheduled]}) == 1
    # broadcast_optimizer_state sent the numbers of worker 0, and left alone what has none.
    assert all(result["options"]["lr"] == pytest.approx(0.01) for result in [*stock, *scheduled])
    assert all(result["options"]["foreach"] is None for result in [*stock, *scheduled])
    assert not (folders[0] / "worker0/status.json").exists()
    for worker in WORKERS:
        status = json.loads((folders[1] / worker / "status.json").read_text())
        assert status["policy"] == "prophet", "the hook was on"


def launcher() -> ModuleType:
    """The installed bpslaunch as a module."""
    loader = importlib.machinery.SourceFileLoader("bpslaunch", str(BIN / "bpslaunch"))
    spec = importlib.util.spec_from_loader("bpslaunch", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.dont_write_bytecode, before = True, sys.dont_write_bytecode  # bin/ is no place for a cache
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of its own source
            loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = before
    return module


@pytest.mark.parametrize(
    ("cores", "bound_to"),
    [(0, None), (1, None), (2, None), (4, [[0], [2]]), (8, [[0, 1], [4, 5]])],
    ids=["no NUMA information", "1 core", "2 cores", "4 cores", "8 cores"],
)
def test_it_starts_with_any_number_of_cores(
    cores: int, bound_to: list[list[int]] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If BytePS has cores to give it gives the same as ever; if it has none, a process has all."""
    pytest.importorskip("byteps")
    bpslaunch = launcher()
    for core in range(cores):
        (tmp_path / f"node0/cpu{core}").mkdir(parents=True)
    monkeypatch.setattr(bpslaunch, "NUMA_PATH", str(tmp_path if cores else tmp_path / "none"))
    started: list[tuple[object, ...]] = []
    monkeypatch.setattr(bpslaunch, "worker", lambda *arguments: started.append(arguments))
    monkeypatch.setattr(bpslaunch.sys, "argv", ["bpslaunch", "python", "train.py"])
    for name in ("NVIDIA_VISIBLE_DEVICES", *(name for name in os.environ if name.startswith("BYTEPS_"))):
        monkeypatch.delenv(name, raising=False)
    job = {"ROLE": "worker", "NUM_WORKER": "1", "NUM_SERVER": "1", "WORKER_ID": "0"}
    for name, value in job.items():
        monkeypatch.setenv(f"DMLC_{name}", value)
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")  # it sets this
    bpslaunch.launch_bps()
    assert started == [(0, 1, "python train.py", bound_to)]
