"""Cuts of tensors that real jobs push themselves: one size on all workers, whatever each of them knows."""

from __future__ import annotations

from pathlib import Path

import pytest

from prophet_scheduler.lab.testbed import Testbed
from support.roles import WORKERS, run_job

pytestmark = [pytest.mark.engine, pytest.mark.netns]

JOBS = Path(__file__).with_name("jobs")
JOB, WHERE = str(JOBS / "own_pushes.py"), str(JOBS / "where.py")
PORT = 24950
LINK_BPS = 400e6
OFF = {"BYTEPS_SCHEDULER": "prophet", "PROPHET_CACHE": "off"}
ON = dict.fromkeys(WORKERS, OFF)


def partitions(urgent: int) -> list[str]:
    """Return a worker's lines: tensors of 2 MiB, the urgent ones in so many parts."""
    return [
        f"partitions {name} {count}"
        for name, count in (("urgent", urgent), ("plain", 1), ("urgent", urgent), ("zero", urgent), ("plain", 1))
    ]


def test_pushes_with_a_priority_have_one_size_on_all_workers(testbed: Testbed, tmp_path: Path) -> None:
    """From the first push on, also after a suspend."""
    ends = run_job(testbed, tmp_path, PORT, (JOB, "1"), ON, lives=2, forked=True)
    assert [end.status for end in ends] == [0, 0], ends
    resumed = [f"partitions {name} 4" for name in ("plain", "urgent", "plain", "urgent", "zero")]
    for end in ends:
        assert end.lines("partitions") == partitions(4) + resumed


def test_no_worker_has_sizes_if_one_cannot(testbed: Testbed, tmp_path: Path) -> None:
    case = (WHERE, "worker_1_has_an_unknown_byteps", JOB)
    ends = run_job(testbed, tmp_path, PORT + 1, case, ON, forked=True)
    assert [end.status for end in ends] == [0, 0], ends
    assert ends[0].lines("partitions") == partitions(1)
