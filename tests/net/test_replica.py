"""Asynchronous jobs with a replica of their model: its server dies and the job begins anew with it, or it dies itself.

What the server had is known from what the workers pushed and read; tests/net/jobs/apart_recorded.py leaves both.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from prophet_mlfabric.replica import ReplicaModel, load
from prophet_mlfabric.torch.weight_blocks import Counts, WeightBlocks, counts_of
from prophet_scheduler.lab.testbed import Testbed
from support.apart import BLOCK_BYTES, WORKERS, JobApart, running

pytestmark = [pytest.mark.engine, pytest.mark.netns]

JOBS = Path(__file__).with_name("jobs")
PORT = 25120
SIZE = 192
BOUND = 0.4
"""Distance of a norm: some eight updates."""


@dataclass(frozen=True)
class Record:
    """Pushed or read weights, and the updates in them."""

    weights: torch.Tensor
    counts: Counts
    at_s: float


def read(file: Path) -> Record:
    blocks = WeightBlocks([torch.zeros(SIZE, SIZE)], len(WORKERS), BLOCK_BYTES)
    with np.load(file) as parts:
        memory, at_s = torch.from_numpy(parts["memory"]), float(parts["at_s"])
    (weights,) = blocks.parameters_in(memory)
    return Record(weights.double(), counts_of(blocks.views(memory)[0], blocks.counted), at_s)


class Recorded:
    """All that a job's workers pushed, in order, and the newest model that any of them has read."""

    def __init__(self, folder: Path) -> None:
        records = folder / "records"
        pushes = sorted((read(file) for file in records.glob("push-*.npz")), key=lambda record: record.at_s)
        (first,) = [record for record in pushes if record.counts[-1]]
        self.first = first
        self._pushes = [record for record in pushes if not record.counts[-1]]
        self.newest = max((read(file) for file in records.glob("read-*.npz")), key=lambda record: sum(record.counts))

    def _missing(self, counts: Counts) -> list[Record]:
        """Pushes that are not in a model with these counts: a worker's updates are pushed one after another."""
        seen = [0] * len(WORKERS)
        missing = []
        for push in self._pushes:
            seen = [before + more for before, more in zip(seen, push.counts, strict=False)]
            if any(more and before > has for more, before, has in zip(push.counts, seen, counts, strict=False)):
                missing.append(push)
        return missing

    def model(self, counts: Counts) -> torch.Tensor:
        """The first weights and every update that these counts say, once."""
        missing = self._missing(counts)
        sums = [push.weights for push in self._pushes if not any(push is other for other in missing)]
        return self.first.weights + torch.stack(sums).sum(0)

    def last_models(self) -> list[torch.Tensor]:
        """Return the possible weights of the server when it died: the newest read ones, with any later pushes."""
        pending = [push.weights for push in self._missing(self.newest.counts)]
        of_some = itertools.chain.from_iterable(
            itertools.combinations(pending, count) for count in range(len(pending) + 1)
        )
        return [torch.stack([self.newest.weights, *some]).sum(0) for some in of_some]


def weights_of(model: ReplicaModel) -> torch.Tensor:
    (array,) = model.weights.values()
    return torch.from_numpy(array).double()


def updates(file: Path) -> int:
    """Return their number in the file; 0 while there is none."""
    return load(file, str(file)).updates if file.exists() else 0


def said_by_coordinator(job: JobApart) -> list[str]:
    return [line for line in job.log("coordinator").splitlines() if "replica" in line]


def test_a_job_whose_server_died_begins_with_a_replica_that_lacks_no_more_than_the_bound(
    apart: Testbed, tmp_path: Path
) -> None:
    file = tmp_path / "model.npz"
    command = (str(JOBS / "apart_recorded.py"), "1000")
    first, stalled = tmp_path / "first", {"PROPHET_STALL_S": "10"}
    with running(apart, first, PORT, command, stalled, replica=file, bound=BOUND, dead_after="3s") as job:
        job.until(lambda: updates(file) >= 12 and all("step 4" in job.log(worker) for worker in WORKERS))
        job.processes["server"].kill()
        assert job.wait() == [75, 75, 75], [job.log(worker) for worker in WORKERS]
        status = job.coordinated()
        assert status["copies"] >= 3 and 0 < status["greatest_divergence"] <= BOUND + 1e-9

    recorded, replica = Recorded(first), load(file, str(file))
    newest = recorded.newest
    torch.testing.assert_close(recorded.model(newest.counts), newest.weights, atol=1e-5, rtol=0.0)
    torch.testing.assert_close(recorded.model(replica.counts), weights_of(replica), atol=1e-5, rtol=0.0)
    distances = [float((model - weights_of(replica)).norm()) for model in recorded.last_models()]
    assert 0 < max(distances) <= BOUND + 1e-5

    command = (str(JOBS / "apart_recorded.py"), "8")
    again = tmp_path / "again"
    with running(apart, again, PORT + 1, command, replica=file, bound=BOUND, resume=True) as job:
        assert job.wait() == [0, 0, 0], [job.log(worker) for worker in WORKERS]
        (line,) = job.said(WORKERS[0])
        assert line.startswith(f"Prophet: this job begins with the {replica.updates} updates that {file} has")
        assert line.endswith(f"later updates of its server, with a total norm of at most {BOUND:g}, are lost")
        assert [job.said(worker) for worker in WORKERS[1:]] == [[], []]
        assert all(job.counts(worker)["resumed"] == replica.updates for worker in WORKERS)
    assert torch.equal(Recorded(again).first.weights, weights_of(replica))
    assert load(file, str(file)).before == replica.updates


def test_a_replica_that_cannot_be_written_is_one_line_and_one_that_can_again_is_used(
    apart: Testbed, tmp_path: Path
) -> None:
    file, steps = tmp_path / "of" / "model.npz", 70
    command = (str(JOBS / "apart.py"), str(steps))
    with running(apart, tmp_path / "job", PORT + 2, command, replica=file, bound=BOUND) as job:
        job.until(lambda: updates(file) >= 6)
        file.parent.rename(tmp_path / "away")
        file.parent.touch()
        job.until(lambda: "no copy of the model reaches the replica" in job.log("coordinator"))
        file.parent.unlink()
        job.until(lambda: "the replica has a copy of the model again" in job.log("coordinator"))
        assert updates(file) > updates(tmp_path / "away" / "model.npz")
        assert job.wait() == [0, 0, 0], [job.log(worker) for worker in WORKERS]
        assert len(said_by_coordinator(job)) == 2
        applied = 0
        for number, worker in enumerate(WORKERS):
            assert job.said(worker) == []
            counts = job.counts(worker)
            assert counts["sent"] == steps and counts["uncoordinated"] == 0
            assert counts["of"][number] == steps, "nothing is in the model twice"
            applied += counts["of"][number]
        status = job.coordinated()
        assert status["applied"] == applied
        assert status["copies_failed"] >= 1 and status["copies"] >= 3
