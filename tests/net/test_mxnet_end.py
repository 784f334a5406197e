"""A Gluon job that never waits for MXNet ends all the same, on all workers, under Prophet."""

from __future__ import annotations

from pathlib import Path

import pytest

from prophet_scheduler.lab.testbed import Testbed
from support.roles import WORKERS, run_job

pytest.importorskip("mxnet")
pytestmark = [pytest.mark.engine, pytest.mark.netns]

JOB = Path(__file__).with_name("jobs") / "mxnet_ends.py"
PORT = 24300
LINK_BPS = 400e6


@pytest.mark.parametrize("how", ["", "shutdown"])
def test_it_ends_with_transfers_under_way(testbed: Testbed, tmp_path: Path, how: str) -> None:
    settings = {worker: {"BYTEPS_SCHEDULER": "prophet"} for worker in WORKERS}
    for end in run_job(testbed, tmp_path, PORT + len(how), (str(JOB), *how.split()), settings):
        assert end.status == 0, end.log[-2000:]
        assert "at the end" in end.log
        assert not end.lines("Prophet:")
