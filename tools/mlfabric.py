"""Time of MLfabric's scheduler on this machine (section 7.4).

Rule of this file: the one clock of MLfabric's studies; prophet_mlfabric/studies has the rest.
"""

from __future__ import annotations

import statistics
import time

from prophet_mlfabric.scheduler import Scheduler
from prophet_mlfabric.studies.tables import PAPER_SCHEDULING_MS, RATES, random_batch

AGGREGATORS = (1, 4, 16)
"""Numbers of aggregators tried; the paper does not say how many there were."""


def scheduling_ms(count: int, rates: str, aggregators: int, repeats: int = 5) -> list[float]:
    """Return the milliseconds to schedule a batch of `count` updates, one a seed.

    They are processor time: what a clock shows on an idle core, whatever else runs meanwhile.
    """
    times = []
    for seed in range(repeats):
        updates, network = random_batch(count, rates, seed)
        scheduler = Scheduler(len(network) - 1, range(min(aggregators, count // 2)), delay_bound=1)
        began = time.process_time()
        scheduler.schedule(updates, network, 0.0)
        times.append((time.process_time() - began) * 1e3)
    return times


def scheduler_times(repeats: int = 5) -> dict[tuple[str, int], dict[int, float]]:
    """Return the median milliseconds by batch size, for each kind of rates and each number of aggregators."""
    return {
        (rates, aggregators): {
            count: statistics.median(scheduling_ms(count, rates, aggregators, repeats)) for count in PAPER_SCHEDULING_MS
        }
        for rates in RATES
        for aggregators in AGGREGATORS
    }
