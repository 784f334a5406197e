"""Arrays of MXNet that are sent before MXNet has allocated them, or that are gone before BytePS's call is over:
everything comes back, with and without Prophet.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from prophet_scheduler.lab.testbed import Testbed
from support.roles import WORKERS, run_job
from tools.native_stress import build

pytest.importorskip("mxnet")
pytestmark = [pytest.mark.engine, pytest.mark.netns]

JOBS = Path(__file__).with_name("jobs")
JOB = str(JOBS / "mxnet_fresh_arrays.py")
PORT = 24250
LINK_BPS = None
NEVER_REUSED = {"MALLOC_PERTURB_": "165", "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0"}
"""Memory that is given back has other bytes in it at once."""


@pytest.mark.parametrize(
    ("port", "settings"), [(PORT, {}), (PORT + 1, {"BYTEPS_SCHEDULER": "prophet"})], ids=["stock", "prophet"]
)
def test_arrays_that_are_sent_at_once_come_back(
    testbed: Testbed, tmp_path: Path, port: int, settings: dict[str, str]
) -> None:
    """As released, some of the 400 arrays end with memory that nobody wrote."""
    ends = run_job(testbed, tmp_path, port, (JOB, "400"), dict.fromkeys(WORKERS, settings))
    assert [(end.status, end.lines("wrong")) for end in ends] == [(0, ["wrong 0"])] * 2, ends


def test_a_task_may_be_over_before_the_call_that_hands_it_over(testbed: Testbed, tmp_path: Path) -> None:
    """As released, a worker ends with SIGSEGV or SIGABRT, or hangs, in each job."""
    away = build(tmp_path / "late_return.so", JOBS / "late_return.cc", "-shared", "-fPIC")
    settings = {"LD_PRELOAD": str(away), **NEVER_REUSED}
    ends = run_job(testbed, tmp_path, PORT + 2, (JOB, "8"), dict.fromkeys(WORKERS, settings))
    assert [(end.status, end.lines("wrong")) for end in ends] == [(0, ["wrong 0"])] * 2, ends
