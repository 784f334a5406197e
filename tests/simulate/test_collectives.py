"""The cost models: by hand, and against the algorithms carried out message by message."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import pytest
from numpy.typing import NDArray

from prophet_scheduler.simulate.collectives import COLLECTIVES, collective_cost

ALPHA, RATE, SUMS = 0.5, 8.0, 32.0  # seconds, bytes and bytes per second: sums are exact
SIZE = 960  # divides by every number of workers here


@pytest.mark.parametrize(
    ("name", "workers", "sums", "overhead_s", "seconds_a_byte"),
    [
        ("ring", 4, 2.0, 6.0, 1.5 + 0.375),
        ("shuffle", 4, 2.0, 6.0, 1.5 + 0.375),
        ("tree", 4, 2.0, 4.0, 4.0 + 1.0),
        ("tree", 5, None, 6.0, 6.0),
        ("double-tree", 4, 2.0, 4.0, 2.0 + 0.5),
        ("recursive-doubling", 4, 2.0, 2.0, 2.0 + 1.0),
        ("recursive-doubling", 5, None, 4.0, 4.0),
        ("halving-doubling", 4, 2.0, 4.0, 1.5 + 0.375),
        ("halving-doubling", 5, None, 6.0, 3.5),
    ],
)
def test_by_hand(name: str, workers: int, sums: float | None, overhead_s: float, seconds_a_byte: float) -> None:
    cost = collective_cost(name, workers, 1.0, 1.0, sums)
    assert cost.overhead_s == pytest.approx(overhead_s)
    assert 1 / cost.bandwidth == pytest.approx(seconds_a_byte)


def test_pace_equation_1() -> None:
    size, workers, bandwidth, computing = 1e8, 8, 1.25e9, 1e10
    by_equation = (size / workers * 2 * (workers - 1)) / bandwidth + (size / workers * (workers - 1)) / computing
    assert collective_cost("ring", workers, 0.0, bandwidth, computing).transfer_s(size) == pytest.approx(by_equation)


# ---- the algorithms, message by message


class Machine:
    """Vectors of `workers`; a round is messages at once, at most one out of and one into a worker, then sums."""

    def __init__(self, workers: int) -> None:
        rng = np.random.default_rng(workers)
        self.vectors = rng.integers(0, 100, (workers, SIZE)).astype(np.float64)
        self.total = self.vectors.sum(axis=0)
        self.now = 0.0

    def round(self, messages: Iterable[tuple[int, int, slice, bool]]) -> None:
        """Messages are (from, to, what, whether it is added)."""
        messages = list(messages)
        assert len({m[0] for m in messages}) == len({m[1] for m in messages}) == len(messages)
        carried = [(to, what, self.vectors[source][what].copy(), add) for source, to, what, add in messages]
        self.now += max(ALPHA + data.size / RATE for _, _, data, _ in carried)
        self.now += max(data.size / SUMS if add else 0.0 for _, _, data, add in carried)
        for to, what, data, add in carried:
            self.vectors[to][what] = self.vectors[to][what] + data if add else data

    def done(self) -> bool:
        return all(np.array_equal(vector, self.total) for vector in self.vectors)


WHOLE = slice(0, SIZE)


def part(index: int, parts: int) -> slice:
    size = SIZE // parts
    return slice(index % parts * size, (index % parts + 1) * size)


def run_ring(m: Machine, p: int) -> None:
    for turn in range(p - 1):
        m.round((w, (w + 1) % p, part(w - turn, p), True) for w in range(p))
    for turn in range(p - 1):
        m.round((w, (w + 1) % p, part(w + 1 - turn, p), False) for w in range(p))


def run_shuffle(m: Machine, p: int) -> None:
    for turn in range(1, p):
        m.round((w, (w + turn) % p, part(w + turn, p), True) for w in range(p))
    for turn in range(1, p):
        m.round((w, (w + turn) % p, part(w, p), False) for w in range(p))


def run_tree(m: Machine, p: int) -> None:
    steps = [2**k for k in range((p - 1).bit_length())]
    for step in steps:
        m.round((w, w - step, WHOLE, True) for w in range(step, p, 2 * step))
    for step in reversed(steps):
        m.round((w - step, w, WHOLE, False) for w in range(step, p, 2 * step))


def folded(core: Callable[[Machine, list[int]], None]) -> Callable[[Machine, int], None]:
    def run(m: Machine, p: int) -> None:
        left = p - (1 << (p.bit_length() - 1))
        if left:
            m.round((2 * i, 2 * i + 1, WHOLE, True) for i in range(left))
        core(m, [2 * i + 1 for i in range(left)] + list(range(2 * left, p)))
        if left:
            m.round((2 * i + 1, 2 * i, WHOLE, False) for i in range(left))

    return run


@folded
def run_recursive_doubling(m: Machine, members: list[int]) -> None:
    step = 1
    while step < len(members):
        m.round((w, members[i ^ step], WHOLE, True) for i, w in enumerate(members))
        step *= 2


@folded
def run_halving_doubling(m: Machine, members: list[int]) -> None:
    mine = dict.fromkeys(range(len(members)), (0, SIZE))
    step = len(members) // 2
    while step:
        messages = []
        for i, w in enumerate(members):
            low, high = mine[i]
            middle = (low + high) // 2
            keep, give = ((middle, high), (low, middle)) if i & step else ((low, middle), (middle, high))
            mine[i] = keep
            messages.append((w, members[i ^ step], slice(*give), True))
        m.round(messages)
        step //= 2
    step = 1
    while step < len(members):
        m.round((w, members[i ^ step], slice(*mine[i]), False) for i, w in enumerate(members))
        mine = {
            i: (min(mine[i][0], mine[i ^ step][0]), max(mine[i][1], mine[i ^ step][1])) for i in range(len(members))
        }
        step *= 2


ALGORITHMS: dict[str, Callable[[Machine, int], None]] = {
    "ring": run_ring,
    "shuffle": run_shuffle,
    "tree": run_tree,
    "recursive-doubling": run_recursive_doubling,
    "halving-doubling": run_halving_doubling,
}


@pytest.mark.parametrize("workers", [2, 3, 4, 5, 6, 8, 16])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_line_is_what_the_algorithm_takes(name: str, workers: int) -> None:
    machine = Machine(workers)
    ALGORITHMS[name](machine, workers)
    assert machine.done()
    assert collective_cost(name, workers, ALPHA, RATE, SUMS).transfer_s(SIZE) == pytest.approx(machine.now)


@pytest.mark.parametrize("workers", [7, 15, 31])
def test_no_worker_of_two_trees_sends_more_than_the_line_says(workers: int) -> None:
    # In-order binary trees: with 2^k - 1 workers, every odd place is inside the first tree, and shifting by
    # one turns these into leaves of the second. Half of the vector goes through each.
    def children(place: int) -> list[int]:
        height = (place + 1) & -(place + 1)
        return [place - height // 2, place + height // 2] if height > 1 else []

    most = 0.0
    for worker in range(workers):
        sent = received = added = 0.0
        for place in (worker, (worker + 1) % workers):
            below = len(children(place))
            above = int(place != workers // 2)
            sent += 0.5 * (above + below)
            received += 0.5 * (above + below)
            added += 0.5 * below
        assert added <= 1 and sent == received
        most = max(most, sent)
    assert 1 / collective_cost("double-tree", workers, 0.0, 1.0).bandwidth == pytest.approx(most)


# ---- a bound below all


@pytest.mark.parametrize("name", COLLECTIVES)
@pytest.mark.parametrize("workers", [2, 3, 8, 100])
def test_no_line_is_below_what_any_all_reduce_needs(name: str, workers: int) -> None:
    # Chan et al. (2007): lg p rounds, and 2 (p-1)/p s bytes out of some worker.
    line = collective_cost(name, workers, 1.0, 1.0)
    rounds: NDArray[np.float64] | float = np.ceil(np.log2(workers))
    assert line.overhead_s >= rounds
    assert 1 / line.bandwidth >= 2 * (workers - 1) / workers - 1e-12
