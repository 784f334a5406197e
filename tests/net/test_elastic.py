"""Jobs that are suspended and resumed: rounds begin together again, and the weights are stock BytePS's."""

from __future__ import annotations

from pathlib import Path

import pytest

from prophet.lab.testbed import Testbed
from support.roles import WORKERS, Ended, run_job

pytestmark = [pytest.mark.engine, pytest.mark.netns]

JOB = str(Path(__file__).with_name("jobs") / "elastic_job.py")
SUSPENSIONS = 2
PORT = 24300
LINK_BPS = 50e6


def run(testbed: Testbed, folder: Path, port: int, replaced: str, settings: dict[str, str]) -> list[Ended]:
    command = (JOB, str(SUSPENSIONS), *filter(None, [replaced]))
    return run_job(testbed, folder, port, command, dict.fromkeys(WORKERS, settings), lives=SUSPENSIONS + 1)


@pytest.mark.parametrize(("port", "replaced"), [(PORT, ""), (PORT + 2, "1")], ids=["same-workers", "replaced-worker"])
def test_a_resumed_job_learns_the_same(testbed: Testbed, tmp_path: Path, port: int, replaced: str) -> None:
    stock = run(testbed, tmp_path / "stock", port, replaced, {})
    scheduled = run(testbed, tmp_path / "scheduled", port + 1, replaced, {"BYTEPS_SCHEDULER": "prophet"})
    assert [end.status for end in (*stock, *scheduled)] == [0] * 4, (stock, scheduled)
    assert not any(end.lines("Prophet") for end in scheduled)
    assert len({line for end in (*stock, *scheduled) for line in end.lines("weights")}) == 1
