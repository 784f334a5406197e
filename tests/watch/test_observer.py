"""Tests of the status that a worker puts together, and of the record that it writes."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import stat
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from prophet_scheduler.core.cut import Cut
from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.events import EVENT_DTYPE, EventKind, QueueKind
from prophet_scheduler.core.network import Network
from prophet_scheduler.core.profile import GradientProfile, Profile
from prophet_scheduler.core.settings import Settings, from_environ
from prophet_scheduler.core.status import AgentStatus
from prophet_scheduler.lab.records import live_status
from prophet_scheduler.lab.report.from_record import read_rows
from prophet_scheduler.watch import training
from prophet_scheduler.watch.meter import Meter
from prophet_scheduler.watch.observer import Observer, job_name, settings_shown, whom, worker_name
from prophet_scheduler.watch.recorder import RecordWriter
from prophet_scheduler.watch.rows import (
    LEAST_LINE_S,
    LINES_BEFORE_SELDOMER,
    BeginRow,
    CutRow,
    EndRow,
    IterationsRow,
    Moments,
    NetworkRow,
    PlanRow,
    ProfileRow,
    Rarely,
    RatesRow,
    TransfersRow,
    WaitsRow,
)
from prophet_scheduler.watch.sockets import ask, sockets_in
from prophet_scheduler.watch.status import Predicted, WorkerName
from prophet_scheduler.watch.training import TrainingLog

WORKER = WorkerName("train-29500", 1, "ddp", workers=2)
AGENT = AgentStatus("prophet", "", 0, 0.0, 1 << 20, 2_000_000, network=Network(1e8), arena=True)
PUSH = QueueKind.PUSH


class Job:
    """An observer on a clock that the test moves; each second it has one transfer and one iteration."""

    def __init__(self, folder: Path | None = None) -> None:
        self.now = 1000.0
        self.agent = AGENT
        self.log = TrainingLog()
        self.woken = 0
        self.observer = Observer(WORKER, self.log, lambda: self.agent, self.wake, clock=lambda: self.now)
        if folder is not None:
            self.observer.record_into(folder)

    def wake(self) -> None:
        self.woken += 1
        self.turn()

    def turn(self, events: Any = None) -> None:
        self.observer.turn(self.now, np.zeros(0, EVENT_DTYPE) if events is None else events, Predicted(0.8, 1.6))

    def second(self, id: int = 7) -> None:
        at = self.now
        rows = [(at + n / 4, id, 1000, 0, PUSH, kind, 0) for n, kind in enumerate(EventKind)]
        self.now += 1.0
        self.log.iteration_ended(0, self.now)
        self.turn(np.array(rows, EVENT_DTYPE))


def begin(settings: Settings) -> Observer:
    observer = Observer.begin(WORKER, settings, lambda: AGENT, lambda: None)
    assert observer is not None
    return observer


def test_status_round_trip() -> None:
    job = Job()
    assert job.observer.status().iterations == 0
    for _ in range(4):
        job.second()
    job.log.waiting("layer.weight", job.now - 0.2, [SimpleNamespace(id=7)])
    document = json.loads(job.observer.document())
    status = live_status(document)
    assert status == job.observer.status().__class__(**{**vars(job.observer.status()), **vars(status)})
    assert (status.worker, status.iterations, status.iteration and status.iteration.median_s) == (WORKER, 4, 1.0)
    assert status.sent.total_bytes == 4000 and status.sent.busy == 0.25
    assert status.predicted.stock_iteration_s == 1.6
    waits = status.forward_waits
    assert waits is not None and (waits.gradient, round(waits.for_s, 6), waits.whom) == (
        "layer.weight",
        0.2,
        "unknown",
    )
    assert live_status({**document, "more": 1, "worker": {**document["worker"], "more": 2}}) == status, "keys are added"


def test_record_is_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py", "--api-key", "secret"])
    path = tmp_path / "worker1.jsonl"
    path.write_text("older")
    path.chmod(0o644)
    monkeypatch.setenv("PROPHET_RECORD", str(tmp_path))
    monkeypatch.setenv("BYTEPS_SCHEDULER", "prophet")
    monkeypatch.setenv("PROPHET_STATUS", "0")
    for variable, shown in (("", []), ("0", []), ("1", sys.argv)):
        if variable:
            monkeypatch.setenv("PROPHET_RECORD_COMMAND", variable)
        begin(from_environ()).close()
        content = path.read_text()
        assert json.loads(content.splitlines()[0])["command"] == shown
        assert ("secret" in content) == bool(shown)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    monkeypatch.setenv("PROPHET_RECORD_COMMAND", "yes")
    with pytest.raises(UserError, match="PROPHET_RECORD_COMMAND is 'yes'; it must be 0 or 1"):
        from_environ()


def test_cause_of_a_wait() -> None:
    job = Job()
    job.turn(np.array([(1000.0, 7, 8, 0, PUSH, EventKind.ADD, 0)], EVENT_DTYPE))
    job.log.waiting("layer.weight", 1000.0, [SimpleNamespace(id=7)])
    waits = job.observer.status().forward_waits
    assert waits is not None and waits.whom == whom("waiting", False) == "earlier transfers of this worker"
    assert whom("pull", False).startswith("another worker")
    assert whom("push", True) == "the wire, or a rank that has not joined yet"


def test_request_wakes_agent_unless_fresh() -> None:
    job = Job()
    job.second()
    job.observer.document()
    assert job.woken == 0
    job.now += 0.5
    job.observer.page()
    assert job.woken == 1


def test_periods_from_events() -> None:
    job = Job()
    job.observer.turn(job.now, np.zeros(0, EVENT_DTYPE), None, np.array([0.5, 0.5, 0.7]))
    spread = job.observer.status().iteration
    assert spread is not None and (spread.median_s, spread.last_s) == (0.5, 0.7)


def test_record_has_changes_and_sums(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.agent = replace(AGENT, cut=Cut.uniform(1 << 20).segments)
    job.second()
    job.log.waiting("layer.weight", job.now)
    job.log.over(job.now + 0.25)
    job.log.paused()
    cut = Cut.uniform(1 << 19).segments
    job.agent = replace(AGENT, cut=cut, recuts=1, recut_reason="predicted 0.8 s", plans=1, network=Network(2e8))
    job.second()
    job.observer.close()
    rows = read_rows(tmp_path / "worker1.jsonl")
    assert isinstance(rows[0], BeginRow) and rows[0].worker == WORKER
    assert [row.number for row in rows if isinstance(row, CutRow)] == [0, 1]
    assert [(row.number, row.predicted_s) for row in rows if isinstance(row, PlanRow)] == [(0, 0.8), (1, 0.8)]
    assert [row.network.bandwidth for row in rows if isinstance(row, NetworkRow)] == [1e8, 2e8]
    assert [(r.sent_bytes, r.sending_s) for r in rows if isinstance(r, RatesRow)][:2] == [(1000, 0.25)] * 2
    ends = [row for row in rows if isinstance(row, IterationsRow)]
    assert [row.ends_s for row in ends] == [(1001.0,), (None, 1002.0)] and [row.before for row in ends] == [0, 1]
    assert [row.waited_s for row in rows if isinstance(row, WaitsRow)] == [{"layer.weight": 0.25}]
    transfers = [row for row in rows if isinstance(row, TransfersRow)]
    assert (transfers[0].gradient, transfers[0].bytes, transfers[0].start_s) == ((7,), (1000,), (0.25,))
    assert isinstance(rows[-1], EndRow) and (rows[-1].iterations, rows[-1].dropped) == (2, 0)


def test_record_has_new_profiles(tmp_path: Path) -> None:
    def profile(backward_s: float, count: int = 2) -> Profile:
        rows = (GradientProfile(f"g{n}", 1000, backward_s * (count - n) / count, 0.1) for n in range(count))
        return Profile("job", tuple(rows), tuple(8 * n for n in range(count)))

    job = Job(tmp_path)
    none = np.zeros(0, EVENT_DTYPE)
    job.observer.turn(job.now, none)
    for learned in (profile(0.4, 4), profile(0.4), profile(0.401), profile(0.5)):
        for _ in range(2):
            job.now += 1.0
            job.observer.turn(job.now, none, profile=learned)
    job.agent = replace(AGENT, barrier=True, half=True)
    job.observer.turn(job.now, none, profile=profile(0.5))
    job.observer.close()
    rows = [row for row in read_rows(tmp_path / "worker1.jsonl") if isinstance(row, ProfileRow)]
    assert [(len(row.gradient), row.generation_s[0], row.time_s) for row in rows] == [
        (4, 0.4, 1001.0),
        (2, 0.4, 1003.0),
        (2, 0.5, 1007.0),
        (2, 0.5, 1008.0),
    ]
    assert (rows[1].gradient, rows[1].bytes, rows[1].forward_s) == ((0, 8), (1000, 1000), (0.1, 0.1))
    assert [(row.half, row.barrier) for row in rows] == [(False, False)] * 3 + [(True, True)]


def test_record_is_bounded(tmp_path: Path) -> None:
    begin = BeginRow(WORKER, 0.0, 0.0, "1")
    writer = RecordWriter(tmp_path, begin, most_bytes=(1 << 20) + 3000)
    meter = Meter()
    for turn in range(200):
        moved = meter.turn(float(turn), np.zeros(0, EVENT_DTYPE))
        writer.turn(float(turn), moved, [float(turn)], {}, AGENT, Predicted())
    writer.close(200.0, AGENT, {}, 0.0)
    rows = read_rows(tmp_path / "worker1.jsonl")
    assert (tmp_path / "worker1.jsonl").stat().st_size < 6000
    assert isinstance(rows[-1], EndRow) and rows[-1].iterations == 200 and rows[-1].dropped > 100


def test_moments_become_rarer() -> None:
    moments = Moments()
    due = [second for second in range(20_000) if moments.due(float(second), changed=False)]
    pauses = [after - before - 1 for before, after in itertools.pairwise(due) if after - before > 1]
    assert due[:16] == list(range(16)), "at first there is no pause"
    assert pauses == sorted(pauses) and pauses[-1] > 200 and len(due) < 300
    assert not moments.due(20_000.5, changed=False)
    assert moments.due(20_000.6, changed=True)


def test_moment_has_whole_iterations() -> None:
    moments = Moments()
    for second in range(10_000):
        moments.due(float(second), changed=False, iteration_s=4.0)
    due = [second for second in range(10_000, 12_000) if moments.due(float(second), False, iteration_s=4.0)]
    runs = [len(list(group)) for _, group in itertools.groupby(enumerate(due), key=lambda pair: pair[1] - pair[0])]
    assert runs and set(runs[1:-1]) <= {10, 11}
    slow = Moments()
    assert sum(slow.due(float(second), False, iteration_s=1000.0) for second in range(22)) == 22


def test_lines_become_rarer() -> None:
    lines = Rarely(LEAST_LINE_S, LINES_BEFORE_SELDOMER)
    assert [lines.due(quarter / 4) for quarter in range(8)] == [True, False, False, False] * 2
    day = sum(lines.due(2.0 + second) for second in range(24 * 3600))
    assert 3000 < day < 6000


def test_unwritable_record_is_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    job = Job(tmp_path / "file")
    start = f"Prophet: writes no record into {tmp_path / 'file'} (PROPHET_RECORD): "
    assert caplog.records[0].getMessage().startswith(start)
    job.second()
    job.observer.close()
    assert len(caplog.records) == 1


def test_full_disk_ends_only_the_record(caplog: pytest.LogCaptureFixture, short_folder: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full")
    (short_folder / "worker1.jsonl").symlink_to("/dev/full")
    job = Job(short_folder)
    for _ in range(3):
        job.second()
    job.observer.close()
    assert [record.getMessage().split(":")[:2] for record in caplog.records] == [["Prophet", " the record ends here"]]
    assert job.observer.status().iterations == 3


def test_failure_in_a_turn_is_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    job = Job()
    for _ in range(3):
        job.turn("no events")
    (line,) = caplog.messages
    assert line.startswith("Prophet: no longer reports its status: ")


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch, short_folder: Path) -> Path:
    monkeypatch.setattr(training, "_log", None)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(short_folder))
    return short_folder / "prophet"


def test_settings_start_status_socket(runtime: Path) -> None:
    assert Observer.begin(WORKER, Settings("prophet"), lambda: AGENT, lambda: None) is None
    assert not runtime.exists()
    with contextlib.closing(begin(Settings("prophet", status=True))):
        (path,) = sockets_in(runtime)
        document = ask(path, 60.0)
        assert document is not None and document["agent"]["policy"] == "prophet"
    assert sockets_in(runtime) == []


def test_taken_port_is_one_warning(runtime: Path, caplog: pytest.LogCaptureFixture) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        settings = Settings("prophet", metrics_port=taken.getsockname()[1])
        begin(settings).close()
    (warning,) = caplog.messages
    assert "no metrics for Prometheus at 127.0.0.1:" in warning
    assert warning.endswith(" (PROPHET_METRICS_PORT): Address already in use")


def test_foreign_folder_is_one_warning(runtime: Path, caplog: pytest.LogCaptureFixture, monkeypatch: Any) -> None:
    monkeypatch.setattr(
        "prophet_scheduler.watch.observer.own_folder", lambda: (_ for _ in ()).throw(PermissionError("not yours"))
    )
    begin(Settings("prophet", status=True)).close()
    assert caplog.messages == ["Prophet: has no status socket: not yours"]


def test_job_is_named_by_script_and_port() -> None:
    assert job_name("/home/me/train.py", "29500") == "train-29500"
    assert job_name("/lib/package/job/__main__.py", "29500") == "job-29500"
    assert job_name("", "") == job_name("", "") == "python"
    worker = worker_name("byteps", "mxnet", 3, 4, 1, "1234")
    assert (worker.rank, worker.workers, worker.local_rank, worker.pid) == (3, 4, 1, os.getpid())
    assert worker.job.endswith("-1234")


def test_record_has_settings_and_no_secret() -> None:
    environ = {"PROPHET_SCHEDULER": "prophet", "AWS_SECRET_ACCESS_KEY": "x", "MASTER_PORT": "1", "HOME": "/home/me"}
    assert settings_shown(environ) == {"MASTER_PORT": "1", "PROPHET_SCHEDULER": "prophet"}
    assert math.isfinite(Job().observer.status().since_s)
