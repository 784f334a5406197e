"""Training in step and stale synchronous training over MLfabric's coordinator, on a real network."""

from __future__ import annotations

from pathlib import Path

import pytest

from prophet_scheduler.lab.testbed import Testbed
from support.apart import WORKERS, JobApart, running

pytestmark = [pytest.mark.engine, pytest.mark.netns]

JOB = str(Path(__file__).with_name("jobs") / "apart.py")
STEPS = 15
PORT = 25200


def trained(job: JobApart) -> None:
    assert job.wait() == [0, 0, 0], [job.log(worker) for worker in WORKERS]
    for number, worker in enumerate(WORKERS):
        assert job.said(worker) == []
        counts = job.counts(worker)
        assert (counts["sent"], counts["dropped"], counts["lost"], counts["alone"]) == (STEPS, 0, 0, 0)
        assert counts["of"][number] == STEPS


def test_in_step_the_weights_are_those_of_synchronous_training(apart: Testbed, tmp_path: Path) -> None:
    with running(apart, tmp_path, PORT, (JOB, str(STEPS)), {"PROPHET_STALENESS": "0"}) as job:
        trained(job)
        counts = [job.counts(worker) for worker in WORKERS]
        assert {kept["digest"] for kept in counts} == {counts[0]["digest"]}, "all have the same model, to the last bit"
        assert max(kept["distance"] for kept in counts) < 1e-5
        assert {kept["lead"] for kept in counts} == {0}
        coordinated = job.coordinated()
        assert (coordinated["applied"], coordinated["ungranted"]) == (3 * STEPS, 0)
        assert coordinated["sums"] > 0, "updates of an iteration are summed on their way"


def test_a_fast_worker_leads_by_the_staleness_and_no_more(apart: Testbed, tmp_path: Path) -> None:
    with running(apart, tmp_path, PORT + 1, (JOB, str(STEPS)), {"PROPHET_STALENESS": "2"}) as job:
        trained(job)
        assert max(job.counts(worker)["lead"] for worker in WORKERS) <= 2
        assert job.coordinated()["applied"] == 3 * STEPS
