"""Children that a real job forks at random moments: each answers, whatever Prophet's and BytePS's threads were at.

FORKS says how many; 5,000 take some minutes.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from prophet_scheduler.lab.testbed import Testbed
from support.roles import WORKERS, run_job

pytestmark = [pytest.mark.engine, pytest.mark.netns]

JOB = str(Path(__file__).with_name("jobs") / "forks.py")
FORKS = int(os.environ.get("FORKS", "50"))
PORT = 24960
LINK_BPS = 400e6


def test_a_forked_child_evaluates(testbed: Testbed, tmp_path: Path) -> None:
    of_all = {worker: {"BYTEPS_SCHEDULER": "prophet"} for worker in WORKERS}
    ends = run_job(testbed, tmp_path, PORT, (JOB, str(FORKS)), of_all, limit_s=180 + FORKS * 0.5, forked=True)
    assert [end.status for end in ends] == [0, 0], ends
    assert all(end.lines("all forks") for end in ends)
