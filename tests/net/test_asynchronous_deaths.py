"""Asynchronous jobs in which a worker or the coordinator dies: the others go on, nothing counts twice.

What was applied is in the server's model itself, which counts each worker's updates.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from prophet_scheduler.lab.testbed import Testbed
from support.apart import WORKERS, JobApart, running

pytestmark = [pytest.mark.engine, pytest.mark.netns]

JOBS = Path(__file__).with_name("jobs")
STEPS = 16
PORT = 25100


@pytest.mark.parametrize(
    ("port", "case", "unheard"),
    [
        (PORT, "worker_1_dies_amid_an_update", 0),
        (PORT + 1, "worker_1_dies_after_its_push", 1),
    ],
)
def test_a_worker_dies_and_the_others_train_to_their_end(
    apart: Testbed, tmp_path: Path, port: int, case: str, unheard: int
) -> None:
    command = (str(JOBS / "apart_where.py"), case, str(STEPS))
    with running(apart, tmp_path, port, command, dead_after="3s") as job:
        check_survivors(job, unheard)


def test_a_worker_dies_before_the_server_answers_it(apart: Testbed, tmp_path: Path) -> None:
    command = (str(JOBS / "apart_where.py"), "worker_1_dies_before_the_server_answers", str(STEPS))
    many_requests = {"PROPHET_PARTITION_BYTES": "4096"}
    with running(apart, tmp_path, PORT + 5, command, many_requests, dead_after="3s") as job:
        job.until(lambda: "stop the server" in job.log("worker1"))
        server = job.processes["server"].pid
        os.kill(server, signal.SIGSTOP)
        (tmp_path / "stopped").touch()
        job.processes["worker1"].wait()
        os.kill(server, signal.SIGCONT)
        check_survivors(job, unheard=0)


def check_survivors(job: JobApart, unheard: int) -> None:
    """Check that all but one worker have trained to their end, and that nothing counts twice."""
    ends = job.wait()
    dead = int((job.folder / "died").read_text())
    alive = [number for number in range(len(WORKERS)) if number != dead]
    assert ends[dead] == -9
    assert [ends[number] for number in alive] == [75, 75], [job.log(WORKERS[number]) for number in alive]
    for number in alive:
        (line,) = job.said(WORKERS[number])
        assert line.startswith(f"Prophet: worker {dead} has died: this worker ends without waiting")
    counts = {number: job.counts(WORKERS[number]) for number in alive}
    for number in alive:
        assert counts[number]["sent"] == STEPS
        assert counts[number]["of"][number] == STEPS, "nothing is in the model twice"
    of_the_dead = max(counts[number]["of"][dead] for number in alive)
    applied = of_the_dead + sum(counts[number]["of"][number] for number in alive)
    # Of what the dead one had applied and did not report, only its own is reported by nobody else.
    assert applied - unheard <= job.coordinated()["applied"] <= applied


def test_the_coordinator_dies_and_comes_back_and_counts_on(apart: Testbed, tmp_path: Path) -> None:
    steps, bound = 40, {"PROPHET_COORDINATOR_BOUND_S": "2"}
    with running(apart, tmp_path, PORT + 3, (str(JOBS / "apart.py"), str(steps)), bound) as job:
        job.until(lambda: all("step 4" in job.log(worker) for worker in WORKERS))
        job.processes["coordinator"].kill()
        job.processes["coordinator"].wait()
        job.until(lambda: all("step 9" in job.log(worker) for worker in WORKERS))
        with job.paused():
            job.start_coordinator()
            job.until(lambda: "listening on" in job.log("coordinator"))
        assert job.wait() == [0, 0, 0], [job.log(worker) for worker in WORKERS]
        applied = 0
        for number, worker in enumerate(WORKERS):
            (line,) = job.said(worker)
            assert "updates go in arrival order until it is" in line
            counts = job.counts(worker)
            assert counts["of"][number] == counts["sent"], "nothing is in the model twice"
            assert 0 < counts["uncoordinated"] < steps, "it was used again"
            applied += counts["of"][number]
        assert job.coordinated()["version"] == applied


def test_the_server_dies_and_every_worker_says_so_where_that_is_asked_for(apart: Testbed, tmp_path: Path) -> None:
    command = (str(JOBS / "apart.py"), "1000")
    with running(apart, tmp_path, PORT + 4, command, {"PROPHET_STALL_S": "10"}, dead_after="3s") as job:
        job.until(lambda: all("step 4" in job.log(worker) for worker in WORKERS))
        job.processes["server"].kill()
        assert job.wait() == [75, 75, 75], [job.log(worker) for worker in WORKERS]
        for worker in WORKERS:
            (line,) = [line for line in job.said(worker) if line.startswith("Prophet: ")]
            assert "no transfer has finished for" in line or "have died" in line or "has died" in line
