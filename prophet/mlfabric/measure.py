"""How long the scheduler takes for one large batch (MLfabric, section 7.4): `python -m prophet.mlfabric.measure`.

Rule of this file: the one file of the package with a clock.

As in the paper: |U| updates with deadlines from Uniform(1, 2 |U|) in a network of |U| / 2 nodes with a congestion-free
core. The paper does not say at which rates the nodes are nor how many aggregators there are; both are varied here.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

import numpy as np

from prophet.mlfabric.network import NetworkState
from prophet.mlfabric.ordering import Update
from prophet.mlfabric.scheduler import Scheduler
from prophet.mlfabric.settings import GBIT, NETWORK

PAPER_MS = {100: 30.0, 500: 440.0, 1000: 1460.0}
"""Milliseconds for a batch of so many updates, section 7.4, in C++ on the paper's machine."""

RATES = ("equal", "N2", "uniform")
"""Every NIC at 10 Gbit/s; drawn from N2; uniform from 1 to 10 Gbit/s."""


def random_batch(count: int, rates: str, seed: int) -> tuple[list[Update], NetworkState]:
    """The updates and the network; the server is the last node, at 10 Gbit/s.

    Version and delay bound of the scheduler are 0 and 1: an update's version is its deadline less 1 (Eq. 9).
    """
    random = np.random.default_rng([seed, count])
    nodes = count // 2
    if rates == "equal":
        drawn = np.full((2, nodes), 10 * GBIT)
    elif rates == "N2":
        drawn = random.choice(NETWORK["N2"].rates, (2, nodes), p=NETWORK["N2"].chances)
    else:
        drawn = random.uniform(1, 10, (2, nodes)) * GBIT
    deadlines = random.integers(1, 2 * count + 1, count)
    updates = [Update(place, place % nodes, 100e6, int(due) - 1) for place, due in enumerate(deadlines)]
    return updates, NetworkState.of_rates([*drawn[0].tolist(), 10 * GBIT], [*drawn[1].tolist(), 10 * GBIT])


def scheduling_ms(count: int, rates: str, aggregators: int, repeats: int = 5) -> list[float]:
    """Milliseconds for ordering and aggregation of one batch, each repeat with another seed."""
    times = []
    for seed in range(repeats):
        updates, network = random_batch(count, rates, seed)
        scheduler = Scheduler(len(network) - 1, range(min(aggregators, count // 2)), delay_bound=1)
        began = time.perf_counter()
        scheduler.schedule(updates, network, 0.0)
        times.append((time.perf_counter() - began) * 1e3)
    return times


def main(counts: Sequence[int] = tuple(PAPER_MS), repeats: int = 5) -> None:
    """Prints medians next to the paper's."""
    for rates in RATES:
        for aggregators in (1, 4, 16):
            for count in counts:
                median = statistics.median(scheduling_ms(count, rates, aggregators, repeats))
                print(
                    f"{rates:8} {aggregators:3} aggregators {count:5} updates {median:8.1f} ms (paper {PAPER_MS[count]:.0f})"
                )


if __name__ == "__main__":
    main()
