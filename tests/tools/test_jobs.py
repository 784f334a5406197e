"""Watch on a maintainers' job: its marks, its traffic, and its end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tools import jobs
from tools.jobs import Ended, Limits, Marks

NET_DEV = """\
Inter-|   Receive                                                |  Transmit
 face |bytes packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo colls carrier compressed
    lo:    5000      10    0    0    0     0          0         0     5000     10    0    0    0     0       0      0
prophet0: 1200      10    0    0    0     0          0         0      345      5    0    0    0     0       0       0
"""
NEVER = Limits(still_s=60.0, whole_s=60.0)


def test_marks_say_how_far_a_worker_is_and_where() -> None:
    assert jobs.read_marks("some line\nconnected\niterat") == Marks(connected=True)
    training = jobs.read_marks("connected\niteration 1\niteration 12\niteration 13")
    assert training == Marks(True, 12)
    done = jobs.read_marks("connected\niteration 1\nweights 12ab\n")
    assert done == Marks(True, 1, "12ab")
    assert [mark.stage for mark in (Marks(), Marks(True), training)] == [
        "at the start",
        "in training",
        "in training",
    ]
    assert min(training, done) == done and min(Marks(True), Marks()) == Marks()


def test_the_loopback_is_no_network() -> None:
    assert jobs.interface_bytes(NET_DEV) == 1545


def watched(folder: Path, said: str, program: str, limits: Limits = NEVER, look: jobs.Look = lambda *_: None) -> Ended:
    """Watch a job of one worker that has said this and runs this program."""
    (folder / "worker0.log").write_text(said, encoding="utf-8")
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", program], stdin=subprocess.PIPE) as process:
        try:
            return jobs.watched({"worker0": process}, ["worker0"], folder, limits, look)
        finally:
            process.kill()


def test_a_job_is_over_when_its_workers_are(tmp_path: Path) -> None:
    ended = watched(tmp_path, "connected\niteration 1\nweights 1f\n", "")
    assert ended == Ended("trained", Marks(True, 1, "1f"))


def test_a_failed_role_is_named_with_its_last_words(tmp_path: Path) -> None:
    ended = watched(tmp_path, "connected\nCheck failed: x\n", "raise SystemExit(3)")
    assert ended == Ended("failed", Marks(True), "worker0 ended with status 3: Check failed: x")


def test_standing_still_is_not_being_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    still = watched(tmp_path, "connected\n", "input()", Limits(still_s=0.0, whole_s=60.0))
    assert (still.end, still.marks.stage) == ("stopped", "in training")
    moving = iter(range(1_000_000))
    monkeypatch.setattr(jobs, "moved", lambda processes, workers: next(moving))
    late = watched(tmp_path, "connected\n", "input()", Limits(still_s=60.0, whole_s=0.0))
    assert late.end == "late"


def test_who_looks_on_can_end_it(tmp_path: Path) -> None:
    ended = watched(tmp_path, "", "input()", look=lambda marks, processes: "seen enough")
    assert ended == Ended("ended", Marks(), "seen enough")
