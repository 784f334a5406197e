"""Whole jobs with their coordinator on a virtual clock, with unreliable wires and machines."""

from __future__ import annotations

from dataclasses import replace

import pytest

from prophet_mlfabric.coordination import Terms
from support.virtual_job import Habits, VirtualJob

TERMS = Terms(delay_bound=9, rate=10e6, dead_s=3.0, lease_s=8.0)
HABITS = Habits()


def applied(job: VirtualJob) -> int:
    return job.coordination.counts.applied


@pytest.mark.parametrize("seed", range(4))
def test_the_delay_bound_holds_and_every_update_counts_once(seed: int) -> None:
    job = VirtualJob(8, TERMS, HABITS, seed)
    job.run(20.0)
    counts = job.coordination.counts
    assert counts.applied > 60
    assert 2 <= counts.greatest_delay <= 9
    assert counts.ungranted == counts.lost == counts.died == 0
    assert set(job.at_server.values()) == {1}
    # Updates that have just arrived are not counted yet.
    assert applied(job) <= len(job.at_server) <= applied(job) + 8


def test_a_tight_bound_drops_updates_and_no_worker_stops() -> None:
    job = VirtualJob(8, replace(TERMS, delay_bound=4), HABITS)
    job.run(20.0)
    counts = job.coordination.counts
    assert counts.dropped > 0 and counts.greatest_delay <= 4
    assert counts.dropped - 8 <= sum(worker.dropped for worker in job.workers.values()) <= counts.dropped
    assert all(worker.updates > 5 for worker in job.workers.values())


@pytest.mark.parametrize("seed", range(1, 4))
def test_broken_connections_make_no_update_count_twice(seed: int) -> None:
    job = VirtualJob(6, TERMS, replace(HABITS, breaks=0.1), seed)
    job.run(20.0)
    assert applied(job) > 40
    assert set(job.at_server.values()) == {1}
    assert applied(job) <= len(job.at_server)
    assert all(worker.connects > 3 for worker in job.workers.values())


def test_workers_continue_without_their_coordinator_and_report_later() -> None:
    job = VirtualJob(6, TERMS, replace(HABITS, bound_s=0.3))
    job.run(5.0)
    job.kill_coordinator()
    job.run(8.0)
    before = len(job.at_server)
    job.run(15.0)
    assert len(job.at_server) > before + 25
    version = max(worker.version for worker in job.workers.values())
    job.start_coordinator()
    job.run(20.0)
    assert set(job.at_server.values()) == {1}
    # It continues from the workers' newest version, and hears of all updates pushed meanwhile.
    assert len(job.at_server) - 6 <= job.coordination.version <= len(job.at_server)
    assert job.coordination.version > version
    assert not any(worker.unheard for worker in job.workers.values() if worker.waiting is not None)


def test_a_coordinator_back_within_the_bound_is_not_missed() -> None:
    job = VirtualJob(6, replace(TERMS, delay_bound=None), HABITS)
    job.run(5.0)
    job.kill_coordinator()
    job.run(5.5)
    job.start_coordinator()
    job.run(10.0)
    assert all(worker.ungranted == 0 for worker in job.workers.values())
    assert set(job.at_server.values()) == {1}


def test_workers_die_and_return_while_others_continue() -> None:
    job = VirtualJob(6, TERMS, HABITS)
    job.run(5.0)
    for number in (0, 3):
        job.kill_worker(number)
    job.run(10.0)
    assert job.coordination.counts.died == 2 and job.coordination.counts.lost > 0
    before = [worker.updates for worker in job.workers.values()]
    for number in (0, 3):
        job.start_worker(number)
    job.run(20.0)
    assert all(job.workers[number].updates > before[number] + 3 for number in (1, 2, 4, 5))
    assert all(job.workers[number].delays for number in (0, 3))
    assert set(job.at_server.values()) == {1}
    assert job.coordination.counts.greatest_delay <= 9


REPLICATED = replace(TERMS, delay_bound=None, divergence_bound=12.0)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("breaks", [0.0, 0.02])
def test_the_replica_never_lags_beyond_the_bound(breaks: float, seed: int) -> None:
    job = VirtualJob(6, REPLICATED, replace(HABITS, breaks=breaks, bound_s=6.0), seed)
    job.run(30.0)
    counts, lag = job.coordination.counts, job.coordination.lag
    assert lag.copies > 5 and lag.failed == 0
    assert counts.applied > 60 and counts.ungranted == 0
    assert 6 < job.greatest_lacking <= lag.greatest <= 12
    assert set(job.at_server.values()) == {1}


def test_the_bound_holds_if_workers_die_during_a_push() -> None:
    job = VirtualJob(6, REPLICATED, replace(HABITS, bound_s=6.0))
    for second in range(1, 6):
        job.run(4.0 * second)
        job.kill_worker(second)
        job.run(4.0 * second + 3.9)
        job.start_worker(second)
    job.run(30.0)
    lag = job.coordination.lag
    assert lag.copies > 5
    assert all(worker.delays for worker in job.workers.values())
    assert job.greatest_lacking <= lag.greatest <= 12
    assert set(job.at_server.values()) == {1}


def test_a_lost_replica_delays_nobody_and_catches_up_later() -> None:
    job = VirtualJob(6, REPLICATED, replace(HABITS, bound_s=6.0))
    job.run(8.0)
    job.replica_lives = False
    job.run(20.0)
    lag = job.coordination.lag
    assert lag.failed >= 2 and len(lag.notices) == 1
    assert job.greatest_lacking > 20, "updates went on"
    job.replica_lives = True
    job.run(30.0)
    assert len(lag.notices) == 2
    assert len(job.at_server.keys() - job.at_replica) <= 12
    assert job.coordination.counts.ungranted == 0
