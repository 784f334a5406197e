"""Cuts of tensors that real jobs push themselves: one size on all workers, whatever each of them knows."""

from __future__ import annotations

from pathlib import Path

import pytest

from prophet_scheduler.lab.testbed import Testbed
from support.roles import WORKERS, run_job, side_by_side

pytestmark = [pytest.mark.engine, pytest.mark.netns]

JOBS = Path(__file__).with_name("jobs")
JOB, WHERE = str(JOBS / "own_pushes.py"), str(JOBS / "where.py")
PORT = 24950
LINK_BPS = 400e6
OFF = {"BYTEPS_SCHEDULER": "prophet", "PROPHET_CACHE": "off"}
ON = dict.fromkeys(WORKERS, OFF)


def partitions(urgent: int, lives: int = 1) -> list[str]:
    """Return a worker's line: tensors of 2 MiB, the urgent ones in so many parts."""
    first = [("urgent", urgent), ("plain", 1), ("urgent", urgent), ("zero", urgent)]
    resumed = [("plain", urgent), ("urgent", urgent), ("plain", urgent), ("urgent", urgent), ("zero", urgent)]
    said = [*first, ("plain", 1), *resumed * (lives - 1)]
    return [f"partitions {name} {count}" for name, count in said]


def test_pushes_with_a_priority_have_one_size_on_all_workers(testbed: Testbed, beside: Testbed, tmp_path: Path) -> None:
    """From the first push on, also after a suspend, and where workers have kept different things."""
    unlike = (WHERE, "workers_want_other_sizes", JOB, "1")
    middle, agreed = side_by_side(
        lambda: run_job(testbed, tmp_path / "middle", PORT, (JOB,), ON, forked=True),
        lambda: run_job(beside, tmp_path / "agreed", PORT, unlike, ON, lives=2, forked=True),
    )
    assert [end.status for end in (*middle, *agreed)] == [0] * 4, (middle, agreed)
    for end in middle:
        assert end.lines("partitions") == partitions(4)
    for end in agreed:
        assert end.lines("partitions") == partitions(8, lives=2)


def test_no_worker_has_sizes_if_one_cannot(testbed: Testbed, tmp_path: Path) -> None:
    case = (WHERE, "worker_1_has_an_unknown_byteps", JOB)
    ends = run_job(testbed, tmp_path, PORT + 1, case, ON, forked=True)
    assert [end.status for end in ends] == [0, 0], ends
    assert ends[0].lines("partitions") == partitions(1)
