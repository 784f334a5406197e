"""Whether rounds are better in two phases: what is tried, what is compared, and what it stays with."""

from __future__ import annotations

import pytest

from prophet_ddp.dividing import AGAIN_S, COUNT, SKIPPED, DividingRule

MEASURED_S = 10.0
RATE = 1e8


class Job:
    """One whose iterations take so long in two phases, and so long in one; ranks go another way when they are told."""

    def __init__(self, two_s: float, whole_s: float) -> None:
        self.rule = DividingRule(MEASURED_S)
        self.two_s, self.whole_s = two_s, whole_s
        self.bandwidth = RATE
        self.now_s = 100.0
        self.divided = False
        self.periods_s: list[float] = []
        self.ways: list[bool] = []

    def iterate(self, count: int) -> None:
        for _ in range(count):
            took_s = self.two_s if self.divided else self.whole_s
            self.now_s += took_s
            self.periods_s.append(took_s if self.periods_s else 5 * took_s)  # the first after a change
            self.ways.append(self.divided)
            wanted = self.rule.turn(self.now_s, self.divided, self.periods_s, self.bandwidth)
            if wanted != self.divided:
                self.divided, self.periods_s = wanted, []


@pytest.mark.parametrize(("two_s", "whole_s", "stays"), [(0.5, 0.6, True), (0.6, 0.5, False), (0.5, 0.502, False)])
def test_it_stays_with_what_was_faster(two_s: float, whole_s: float, stays: bool) -> None:
    job = Job(two_s, whole_s)
    job.iterate(300)
    changes = [place for place in range(1, 300) if job.ways[place] != job.ways[place - 1]]
    assert len(changes) == (3 if stays else 2) and changes[-1] <= 3 * (COUNT + SKIPPED + 1)
    assert job.ways[-1] is stays


def test_one_that_became_slower_is_measured_without_and_compared_anew() -> None:
    job = Job(0.5, 0.6)
    job.iterate(40)
    job.two_s = 0.8
    since_s = job.now_s
    while job.divided:
        job.iterate(1)
    assert job.now_s - since_s < AGAIN_S + 2
    before = len(job.ways)
    job.iterate(round(MEASURED_S / job.whole_s))
    assert not any(job.ways[before + 1 :]), "for as long as it takes to measure the network"
    job.iterate(40)
    assert not job.divided, "which is faster now"


def test_another_network_is_another_question() -> None:
    job = Job(0.6, 0.5)
    job.iterate(40)
    assert not job.divided
    job.bandwidth, job.two_s, job.whole_s = RATE / 4, 1.0, 1.5
    job.iterate(round(AGAIN_S / job.whole_s) + 40)
    assert job.divided
