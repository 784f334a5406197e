"""A real job of two ranks is watched while it trains: by `prophet top`, by Prometheus, and by its record."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from prophet_scheduler.cli.top import ask_all, statuses
from prophet_scheduler.lab.report import story_of
from prophet_scheduler.watch.sockets import sockets_in
from prophet_scheduler.watch.status import LiveStatus
from support.forks import Forked, ddp_server
from support.programs import clean_environ, torchrun_variables
from tools.ports import free_port

PROGRAM = Path(__file__).with_name("training_cases.py")
LIMIT_S = 400.0
BYTES = 6 * (64 * 64 + 64) * 4


@contextlib.contextmanager
def job(folder: Path, settings: Mapping[str, str], port: int, program: Path = PROGRAM) -> Iterator[list[Forked]]:
    """Two ranks that train until the file `stop` is in the folder."""
    ranks = []
    for rank in range(2):
        place = folder / f"rank{rank}"
        place.mkdir()
        environ = clean_environ() | {"PROPHET_SCHEDULER": "prophet", "XDG_RUNTIME_DIR": str(folder)} | dict(settings)
        ranks.append(
            ddp_server().fork([str(program), str(folder / "stop")], place, environ | torchrun_variables(rank, 2, port))
        )
    try:
        yield ranks
    finally:
        for process in ranks:
            process.close()


def eventually(look: Callable[[], Any], folder: Path) -> Any:
    """Return what `look` returns, once that is something."""
    deadline = time.monotonic() + LIMIT_S
    while not (found := look()):
        logs = "".join(path.read_text() for path in folder.glob("*/log"))
        assert time.monotonic() < deadline, logs
        time.sleep(0.05)
    return found


def counted(status: LiveStatus) -> bool:
    """Return True if the bytes are those of the iterations; the newest may not have been looked at."""
    return status.sent.total_bytes == pytest.approx(status.iterations * BYTES, rel=0.2)


@pytest.fixture
def folder() -> Iterator[Path]:
    """Folder with a short path, as sockets need."""
    with tempfile.TemporaryDirectory(prefix="prophet-") as name:
        yield Path(name)


def test_a_job_says_what_it_does(folder: Path) -> None:
    port, figures = free_port(), free_port()
    place = folder / "prophet"
    settings = {"PROPHET_RECORD": str(folder / "record"), "PROPHET_METRICS_PORT": str(figures)}
    settings["PROPHET_PARTITION_BYTES"] = str(1 << 20)  # else so small a job would be torch's before it is seen

    def both() -> list[LiveStatus]:
        seen = statuses(ask_all([place]))
        ready = [s for s in seen if s.iteration is not None and s.iterations > 50 and counted(s)]
        return seen if len(ready) == 2 and seen[0].predicted.stock_iteration_s is not None else []

    def page() -> str:
        """Return the figures, or nothing if this process was so slow to ask that it was given up."""
        address = f"http://127.0.0.1:{figures}/metrics"
        with contextlib.suppress(OSError), urllib.request.urlopen(address, timeout=LIMIT_S) as answer:
            return str(answer.read().decode())
        return ""

    def shown() -> list[int]:
        """Return the ranks that `prophet top` shows, in its order; a rank that takes over a second is left out."""
        top = subprocess.run(
            [sys.executable, "-m", "prophet_scheduler.cli.main", "top", "training_cases", "--json", "--count", "1"],
            env={**os.environ, "XDG_RUNTIME_DIR": str(folder)},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
        return [json.loads(line)["worker"]["rank"] for line in top.stdout.splitlines()]

    with job(folder, settings, port) as ranks:
        first, second = eventually(both, folder)
        assert [s.worker.rank for s in (first, second)] == [0, 1]
        assert {s.worker.job for s in (first, second)} == {f"training_cases-{port}"}
        assert [s.worker.pid for s in (first, second)] == [rank.pid for rank in ranks]
        for status in (first, second):
            assert status.worker.workers == 2 and status.all_reduce and status.agent.stepped_aside == ""
            assert status.sent == status.received
            assert status.iteration is not None and 0 < status.iteration.median_s < 1
            assert status.urgency and abs(time.time() - status.time_s) < LIMIT_S, "in Unix time"
        assert first.agent.plans >= 1 and first.agent.network is not None
        iterations = f'prophet_iterations_total{{job="training_cases-{port}",rank="0",policy="prophet"}}'
        assert iterations in eventually(page, folder)
        assert eventually(lambda: shown() == [0, 1], folder)
        (folder / "stop").touch()
        assert [rank.wait(LIMIT_S) for rank in ranks] == [0, 0]
    assert sockets_in(place) == []
    assert (folder / "rank0" / "log").read_text() == ""
    story = story_of(folder / "record")
    assert [chapter.name for chapter in story.chapters] == ["worker 0", "worker 1"]
    for chapter in story.chapters:
        assert len(chapter.laps) > 50 and chapter.moments and chapter.cuts and chapter.traffic
        assert not chapter.notes
    assert story.settings["PROPHET_SCHEDULER"] == "prophet"
