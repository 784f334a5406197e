"""Tests of tools/observed.py: the changes that are made to a job."""

from __future__ import annotations

from tools.observed import JOBS, changes_of


def test_each_job_is_run_with_changes_of_its_own() -> None:
    for job in JOBS:
        changes = changes_of(job)
        assert ("kept" in changes) == (job.way == "fsdp2")
        faster, _, _ = changes["twice-the-rate"]
        assert faster.rate_bps == 2 * job.rate_bps and faster.way == job.way
