"""Arrays of MXNet that are sent before MXNet has allocated them: everything comes back, with and without Prophet."""

from __future__ import annotations

from pathlib import Path

import pytest

from prophet.lab.testbed import Testbed
from support.roles import WORKERS, run_job

pytest.importorskip("mxnet")
pytestmark = [pytest.mark.engine, pytest.mark.netns]

JOB = str(Path(__file__).with_name("jobs") / "mxnet_fresh_arrays.py")
PORT = 24250
LINK_BPS = None


@pytest.mark.parametrize(
    ("port", "settings"), [(PORT, {}), (PORT + 1, {"BYTEPS_SCHEDULER": "prophet"})], ids=["stock", "prophet"]
)
def test_what_was_sent_at_once_comes_back(
    testbed: Testbed, tmp_path: Path, port: int, settings: dict[str, str]
) -> None:
    """As released, some of the 400 arrays end with memory that nobody wrote."""
    ends = run_job(testbed, tmp_path, port, (JOB,), dict.fromkeys(WORKERS, settings))
    assert [(end.status, end.lines("wrong")) for end in ends] == [(0, ["wrong 0"])] * 2, ends
