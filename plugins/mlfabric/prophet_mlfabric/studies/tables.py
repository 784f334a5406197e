"""The paper's tables from the simulation (MLfabric, section 7): Table 2, and figures in the text around it.

Rule of this file: runs and ratios. The paper's printed values are here as data; no run uses them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from prophet_mlfabric.network import NetworkState
from prophet_mlfabric.ordering import Update
from prophet_mlfabric.studies.cluster import RR_SYNC, Method, Record, mlfabric_a, run
from prophet_mlfabric.studies.settings import COMPUTE, GBIT, NETWORK, Setting
from prophet_mlfabric.studies.training import SgdProblem, best_step
from prophet_scheduler.core.errors import UserError

_PRINTED = {"C1": (1.74, 1.23, 1.42), "C2": (2.96, 2.0, 2.32), "C3": (1.90, 1.33, 1.42)}
PAPER_TABLE_2: Mapping[tuple[str, str], float] = {
    (compute, network): speedup
    for compute, row in _PRINTED.items()
    for network, speedup in zip(NETWORK, row, strict=True)
}
"""Speedup of MLfabric-A in time to 74 % accuracy over RR-Sync, as printed."""

PAPER_SCHEDULING_MS: Mapping[int, float] = {100: 30.0, 500: 440.0, 1000: 1460.0}
"""Milliseconds to schedule a batch, by its number of updates; section 7.4, in C++ on the paper's machine."""

RATES = ("equal", "N2", "uniform")
"""NIC rates: all 10 Gbit/s; drawn from N2; uniform from 1 to 10 Gbit/s. The paper does not say which it used."""

DELAY_BOUND = 30
"""Versions, as in the paper's MLfabric-A-30 (section 7)."""

TABLE_2 = (RR_SYNC, mlfabric_a(DELAY_BOUND))
"""Methods that Table 2 compares."""

STEPS = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4)
"""Candidates for each method's step size."""


def setting_of(compute: str, network: str, seed: int = 0) -> Setting:
    """Return the paper's cluster in one of its nine settings."""
    return Setting(COMPUTE[compute], NETWORK[network], seed=seed)


def ratio_to_target(setting: Setting, problem: SgdProblem, horizon_s: float, excess: float = 0.02) -> float:
    """Return RR-Sync's time over MLfabric-A's until the loss of `problem` exceeds its minimum by the fraction `excess`.

    Each method has its best step size.
    """
    target = problem.least_loss() * (1 + excess)
    slow, fast = (best_step(setting, method, problem, STEPS, target, horizon_s)[1] for method in TABLE_2)
    return slow.curve.time_to(target) / fast.curve.time_to(target)


@dataclass(frozen=True)
class RingComparison:
    """MLfabric-A's time compared with a ring's. Times are means, in seconds, for as many updates as workers.

    A ring's iteration is `computing_s`, until the slowest worker has its update, and `transfers_s` after that.
    MLfabric's server gets `updates_a_message` updates per transfer on average, with those in sums, and its NIC receives
    for the fraction `busy` of the time.
    """

    ring_s: float
    computing_s: float
    transfers_s: float
    mlfabric_s: float
    updates_a_message: float
    busy: float

    @property
    def ratio(self) -> float:
        """Time of the ring over MLfabric's: above 1 if MLfabric is faster."""
        return self.ring_s / self.mlfabric_s

    def idle(self, compute_s: float) -> float:
        """Return the fraction of a ring's iteration in which a worker, if no straggler, neither computes nor sends."""
        return max(0.0, self.computing_s - compute_s) / self.ring_s

    def needed(self, update_s: float, workers: int) -> float:
        """Return the updates per message at which a server's NIC that is never idle would be as fast as the ring.

        `update_s` is the time in which the NIC receives one message.
        """
        return workers * update_s / self.ring_s


def compare_with_ring(setting: Setting, ring: Record, mlfabric: Record, until_s: float) -> RingComparison:
    """Compare two jobs on the same cluster: one under RR_SYNC, and one under MLfabric-A up to `until_s`.

    Raises UserError if either has fewer updates than there are workers.
    """
    steps = len(ring.applied_s) // setting.workers
    updates = sum(time_s <= until_s for time_s in mlfabric.applied_s)
    if not steps or updates < setting.workers:
        raise UserError("the jobs are too short to compare: give them more time")
    ends = ring.applied_s[setting.workers - 1 :: setting.workers][:steps]
    computing = sum(ready - end for ready, end in zip(ring.ready_s, (0.0, *ends[:-1]), strict=False)) / steps
    ring_s = ends[-1] / steps
    a_message = len(mlfabric.applied_s) / mlfabric.sent_to_server
    return RingComparison(
        ring_s=ring_s,
        computing_s=computing,
        transfers_s=ring_s - computing,
        mlfabric_s=until_s / updates * setting.workers,
        updates_a_message=a_message,
        busy=min(1.0, updates / a_message * setting.model_bytes / setting.bandwidth / until_s),
    )


def lda_setting() -> Setting:
    """Return section 7.1's topic model in C1-N1: 180 ms of computing (section 2), 1.8 s for 30 updates at 10 Gbit/s."""
    return Setting(COMPUTE["C1"], NETWORK["N1"], model_bytes=1.8 * 10 * GBIT / 30, compute_s=0.18)


def replication_savings(bounds: Sequence[float], horizon_s: float = 60.0) -> dict[float, float]:
    """Return figure 9's data in C1-N1: mean number of updates in a transfer to the replica, by divergence bound.

    Updates have norm 1 and no momentum, so a bound is a number of updates.
    """
    savings = {}
    for bound in bounds:
        method = replace(mlfabric_a(DELAY_BOUND), divergence_bound=bound)
        record = run(setting_of("C1", "N1"), method, horizon_s=horizon_s)
        savings[bound] = record.replicated / record.sent_to_replica if record.sent_to_replica else math.inf
    return savings


def iteration_s(setting: Setting, method: Method, horizon_s: float = 200.0) -> float:
    """Return the mean seconds for as many applied updates as workers: one iteration of a synchronous method."""
    return setting.workers / run(setting, method, horizon_s=horizon_s).updates_per_s


def random_batch(count: int, rates: str, seed: int) -> tuple[list[Update], NetworkState]:
    """Return section 7.4's batch: `count` updates with deadlines from Uniform(1, 2 count) at count / 2 nodes.

    `rates` is one of RATES. The server is the last node, at 10 Gbit/s. The deadlines are Eq. 9's for a scheduler whose
    version is 0 and whose delay bound is 1.
    """
    random = np.random.default_rng([seed, count])
    nodes = count // 2
    drawn = np.full((2, nodes + 1), 10 * GBIT)
    if rates == "N2":
        drawn[:, :-1] = random.choice(NETWORK["N2"].rates, (2, nodes), p=NETWORK["N2"].chances)
    elif rates == "uniform":
        drawn[:, :-1] = random.uniform(1, 10, (2, nodes)) * GBIT
    deadlines = random.integers(1, 2 * count + 1, count)
    updates = [Update(place, place % nodes, 100e6, int(due) - 1) for place, due in enumerate(deadlines)]
    return updates, NetworkState.of_rates(*drawn.tolist())
