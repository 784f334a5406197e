"""Programs that look at all averages before they use any: seen as such, and not watched for longer than it serves."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from prophet_byteps.cutting import CutBoard
from prophet_scheduler.core.cut import MOST_BLOCK_BYTES, Cut
from prophet_scheduler.frontends.torch import guards
from prophet_scheduler.frontends.torch.probation import IN_VAIN, STEPS
from prophet_scheduler.learn.barrier import LEAST_ALIKE
from support.torch_network import Network, install, loss_of, twins_of


class Job:
    """A model under the front end, and its twin in one process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.network = Network()
        self.board = CutBoard(Cut.uniform(MOST_BLOCK_BYTES))
        install(monkeypatch, self.network, board=self.board)
        self.twins = twins_of(self.network, lambda params: torch.optim.SGD(params, 0.1, momentum=0.9))
        self.optimizer = self.twins.optimizer
        self.done = 0

    def clip(self, steps: int) -> None:
        for _ in range(steps):
            for model, optimizer in self.twins.sides:
                optimizer.zero_grad()
                loss_of(model, self.done).backward()
                optimizer.synchronize()
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                with optimizer.skip_synchronize():
                    optimizer.step()
            self.done += 1

    def step(self, steps: int) -> None:
        self.twins.train(self.done, steps)
        self.done += steps

    @property
    def watched(self) -> bool:
        """True if every use of its parameters is noted."""
        return id(self.optimizer._prophet) in guards._learning


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    made = Job(monkeypatch)
    yield made
    made.network.shutdown()


def test_clipping_by_the_norm_of_all_is_seen_and_that_it_ends(job: Job) -> None:
    job.clip(2)
    assert job.board.barrier
    job.step(LEAST_ALIKE - 1)
    assert job.board.barrier, "though its updates are not late yet"
    job.step(1)
    assert not job.board.barrier
    assert job.twins.alike()


def test_a_job_without_is_never_taken_for_one(job: Job) -> None:
    for _ in range(10):
        job.step(1)
        assert not job.board.barrier


def test_a_program_in_which_nothing_can_be_noticed_waits_from_then_on(job: Job) -> None:
    job.step(STEPS + 1)
    job.optimizer._prophet.keep_barrier()
    job.step(LEAST_ALIKE)
    assert job.board.barrier


def test_a_job_that_clips_is_not_watched_for_good(job: Job) -> None:
    job.clip(1)
    assert job.watched, "on probation"
    job.clip(IN_VAIN)
    assert not job.watched
    assert job.twins.alike()


def test_one_that_stops_clipping_has_late_updates_soon_and_the_same_bits(job: Job) -> None:
    job.clip(2 * IN_VAIN)
    job.step(1)
    assert not job.network.flying, "the first step waits for all"
    for _ in range(STEPS - 1):
        job.step(1)
        assert not job.network.flying and job.watched
    job.step(2)
    assert job.network.flying, "and then none does"
    assert not any(slot.eager for slot in job.optimizer._prophet._order), "all uses were noted meanwhile"
    assert job.twins.alike()


def test_gradients_in_one_flat_tensor_are_late_like_others(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    flats = []
    for model, _ in job.twins.sides:
        params = list(model.parameters())
        flats.append(torch.zeros(sum(p.numel() for p in params)))
        for p, part in zip(params, flats[-1].split([p.numel() for p in params]), strict=True):
            p.grad = part.view_as(p)
    late = 0
    for number in range(6):
        for flat, (model, optimizer) in zip(flats, job.twins.sides, strict=True):
            flat.zero_()
            loss_of(model, number).backward()
            optimizer.step()
        late += bool(job.network.flying)
    assert late and not caplog.messages
    assert flats[0].equal(flats[1]) and job.twins.alike()


def test_gradients_in_one_flat_tensor_that_no_backward_pass_made_become_their_averages(job: Job) -> None:
    flats = []
    for model, optimizer in job.twins.sides:
        params = list(model.parameters())
        flats.append(torch.linspace(0, 1, sum(p.numel() for p in params)))
        for p, part in zip(params, flats[-1].split([p.numel() for p in params]), strict=True):
            p.grad = part.view_as(p)
        optimizer.step()
    assert flats[0].equal(flats[1]) and job.twins.alike()
