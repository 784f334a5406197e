"""Lower bounds of every cut into blocks, beside simulated cuts."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
from hypothesis import given, settings

from prophet_scheduler.core.bound import blocks_bound_s
from prophet_scheduler.core.cut import MOST_BLOCK_BYTES, UNIT_BYTES, Cut, Segment
from prophet_scheduler.core.plan import Plan, QueuePlan
from prophet_scheduler.core.profile import GradientProfile, Profile
from prophet_scheduler.simulate import Cluster, Costs, Options, simulate
from prophet_scheduler.simulate.cluster import MESSAGES_TO_ANSWER
from prophet_scheduler.simulate.job import job_of_cut

RATE = 31.25e6
OVERHEAD_S, LATENCY_S = 2e-4, 1e-4
CLUSTER = Cluster(2, 1, {f"worker{w}": ((0.0, RATE),) for w in range(2)}, Costs(OVERHEAD_S, LATENCY_S))
sizes = st.integers(1, 40).map(lambda units: units * UNIT_BYTES)


def fastest_s(profile: Profile, cut: Cut, credit: int) -> float:
    """The shortest of some iterations, from backward to backward."""
    plan = Plan(push=QueuePlan(order={}, credit=credit), pull=QueuePlan(order={}))
    options = Options(iterations=4, partition_bytes=MOST_BLOCK_BYTES, plan=plan)
    run = simulate(job_of_cut(profile, cut), CLUSTER, None, options)
    return float(np.diff(run.marks["backward_s"], axis=1).min())


def bound_s(profile: Profile) -> float:
    return blocks_bound_s(profile, RATE, OVERHEAD_S, MESSAGES_TO_ANSWER * LATENCY_S)


@given(
    st.lists(st.tuples(sizes, st.floats(0, 0.01), st.floats(0, 0.01)), min_size=1, max_size=6),
    st.lists(st.tuples(st.integers(1, 60), sizes), max_size=4, unique_by=lambda segment: segment[0]),
    sizes,
    st.integers(1, 1 << 21),
)
@settings(max_examples=200)
def test_no_cut_goes_below_it(
    layers: list[tuple[int, float, float]], segments: list[tuple[int, int]], first: int, credit: int
) -> None:
    made_s = np.cumsum([gap_s for _, gap_s, _ in layers])[::-1]
    rows = [
        GradientProfile(f"g{place}", size, float(time_s), forward_s)
        for place, ((size, _, forward_s), time_s) in enumerate(zip(layers, made_s, strict=True))
    ]
    profile = Profile("layers", tuple(rows))
    cut = Cut((Segment(0, first), *(Segment(start * UNIT_BYTES, size) for start, size in sorted(segments))))
    assert fastest_s(profile, cut, credit) > bound_s(profile) - 1e-9


def test_the_best_size_comes_near_to_it() -> None:
    # Not to it: alone on its way a block leaves the wire idle until it is acknowledged, and of two the first one's pull
    # is asked for behind the second.
    profile = Profile("one", (GradientProfile("g0", 6_400_000, 0.0, 0.01),))
    took_s = {
        kib: min(fastest_s(profile, Cut.uniform(kib << 10), count * (kib << 10)) for count in (1, 2, 3))
        for kib in (48, 144, 800)
    }
    assert took_s[144] < 1.05 * bound_s(profile)
    assert min(took_s[48], took_s[800]) > 1.07 * bound_s(profile)


def test_small_blocks_behind_large_ones_make_up_for_nothing() -> None:
    # Both lanes are as fast, so what a large block costs is not had back, wherever it is.
    profile = Profile("one", (GradientProfile("g0", 6_400_000, 0.0, 0.01),))
    unit = 200 << 10
    even = fastest_s(profile, Cut.uniform(unit), 1 << 21)
    for start, stop in ((0, 12), (6, 18), (18, 30)):
        before = [Segment(0, unit)] if start else []
        cut = Cut((*before, Segment(start * unit, 4 * unit), Segment(stop * unit, unit)))
        assert fastest_s(profile, cut, 1 << 21) > 1.02 * even
