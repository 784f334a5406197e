"""When torch's reducer gets a turn, and when it stays: of iteration times alone."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator

import pytest

from prophet_ddp.comparison import FOR_GOOD, LEAST_COUNT, MOST_COMPARISONS, TRIED, WARM_UP, Comparison, clearly_faster

PAGES = 4
"""Iterations from a wish until the ranks hold it."""


class Job:
    """A job whose iterations take `own_s()` under Prophet and `torch_s()` with torch's reducer."""

    def __init__(self, own_s: Callable[[], float], torch_s: Callable[[], float]) -> None:
        self.own_s, self.torch_s = own_s, torch_s
        self.comparison = Comparison()
        self.turns: list[int] = []
        self.iterations = 0

    def run(self, iterations: int, blocks: object = "best") -> bool:
        """Whether torch's reducer has the job in the end."""
        left, due = iterations, -1
        while left > 0:
            left -= 1
            wanted = self.comparison.under_prophet(self.own_s(), blocks)  # type: ignore[arg-type]
            due -= 1
            while wanted or due == 0:
                if wanted:
                    self.turns.append(wanted)
                    due, wanted = PAGES, 0
                    break
                if self.turns[-1] == FOR_GOOD:
                    return True
                for _ in range(self.turns[-1]):
                    self.comparison.under_torch(self.torch_s())
                left -= self.turns[-1]
                due, wanted = -1, self.comparison.turn_ends()
        return False


def around(seconds: float, scatter: float = 0.2, seed: int = 1) -> Callable[[], float]:
    """Times that scatter upwards, as those of a machine that others use."""
    chance = random.Random(seed)
    return lambda: seconds * (1 + scatter * chance.expovariate(1.0))


def test_torchs_reducer_stays_where_it_is_faster() -> None:
    job = Job(around(8e-3), around(5e-3, seed=2))
    assert job.run(2000)
    look, turn, last = job.turns
    assert LEAST_COUNT <= look < turn and last == FOR_GOOD
    assert job.comparison.torch_s < job.comparison.own_s


@pytest.mark.parametrize(("own_s", "torch_s"), [(0.925, 1.67), (0.92, 1.05), (5e-3, 9e-3)])
def test_where_prophet_pays_the_first_turn_is_the_last(own_s: float, torch_s: float) -> None:
    job = Job(around(own_s, 0.02), around(torch_s, 0.02, seed=2))
    assert not job.run(2000)
    assert len(job.turns) == 1
    assert job.turns[0] * torch_s < 4.0, "seconds that it may cost"


@pytest.mark.parametrize("base_s", [0.004, 0.05, 0.5])
@pytest.mark.parametrize("scatter", [0.0, 0.1, 0.5])
def test_prophet_is_kept_where_both_are_alike(base_s: float, scatter: float) -> None:
    for seed in range(8):
        job = Job(around(base_s, scatter, seed), around(base_s, scatter, seed + 100))
        assert not job.run(1000)
        assert 1 <= len(job.turns) <= 2


@pytest.mark.parametrize("slower", [1.0, 1.03, 1.08])
def test_what_is_no_faster_has_few_of_a_long_jobs_iterations(slower: float) -> None:
    for seed in range(8):
        job = Job(around(0.7, 0.02, seed), around(0.7 * slower, 0.02, seed + 100))
        assert not job.run(300)
        assert sum(job.turns) <= 2 + WARM_UP + TRIED


@pytest.mark.parametrize("scatter", [0.0, 0.02, 0.1])
def test_torchs_reducer_stays_where_long_iterations_are_faster(scatter: float) -> None:
    for seed in range(8):
        job = Job(around(0.7, scatter, seed), around(0.6, scatter, seed + 100))
        assert job.run(300)


def test_what_else_the_machine_does_for_a_while_does_not_decide() -> None:
    """Another program runs until torch's reducer has its turn, and then no more: Prophet is measured once more."""
    busy: Iterator[float] = itertools.chain([9e-3] * (2 * 200 + 40), itertools.repeat(5e-3))
    job = Job(lambda: next(busy), lambda: 5e-3)
    own = job.own_s

    def torch_s() -> float:
        job.own_s = lambda: 5e-3 if job.turns[1:] else own()
        return 5e-3

    job.torch_s = torch_s
    assert not job.run(3000)
    assert FOR_GOOD not in job.turns and len(job.turns) == 2


def test_nothing_is_compared_until_blocks_are_at_rest() -> None:
    job = Job(around(8e-3), around(5e-3))
    assert not job.run(1000, blocks=None)
    assert job.turns == []
    for cut in range(100):
        assert not job.run(LEAST_COUNT + WARM_UP - 1, blocks=cut)
    assert job.turns == []


def test_other_blocks_are_compared_again_but_not_for_ever() -> None:
    job = Job(around(5e-3), around(9e-3))
    for cut in range(3 * MOST_COMPARISONS):
        assert not job.run(500, blocks=cut)
        assert not job.run(500, blocks=cut)
    assert len(job.turns) == MOST_COMPARISONS


def test_a_turn_of_no_use_is_over_at_once() -> None:
    comparison = Comparison()
    assert comparison.turn_ends() == 0, "one that nobody asked for"
    assert comparison.under_prophet(1.0, "best") == 0


@pytest.mark.parametrize(
    ("periods_s", "than_s", "faster"),
    [
        ([5e-3] * 20, [8e-3] * 20, True),
        ([5e-3] * 20, [5.2e-3] * 20, False),
        ([5e-3] * 20, [5e-3] * 20, False),
        ([8e-3] * 20, [5e-3] * 20, False),
        ([1e-3, 9e-3] * 10, [2e-3, 10e-3] * 10, False),
    ],
)
def test_faster_is_what_is_so_beyond_scatter(periods_s: list[float], than_s: list[float], faster: bool) -> None:
    assert clearly_faster(periods_s, than_s) is faster
