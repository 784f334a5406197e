"""FSDP2, HSDP and two phases on the simulator: against times computed by hand."""

from __future__ import annotations

import pytest

from prophet_scheduler.core._native import Exchange
from prophet_scheduler.core.cut import Borders
from prophet_scheduler.core.plan import Plan
from prophet_scheduler.core.profile import GradientProfile, Profile
from prophet_scheduler.simulate.cluster import Cluster
from prophet_scheduler.simulate.job import Job, job_of_cut
from prophet_scheduler.simulate.run import Options, simulate
from prophet_scheduler.simulate.sharded import AHEAD, Sharding, job_of_phases, job_of_shards, modules_of

WHOLE = 1 << 31
BLOCK_BYTES = 512 << 10


def two_modules(forward_s: tuple[float, float], backward_s: tuple[float, float]) -> Profile:
    """Modules with 4 and 8 bytes of parameters."""
    late, early = backward_s[1] + backward_s[0], backward_s[1]
    return Profile(
        "two", (GradientProfile("first", 4, late, forward_s[0]), GradientProfile("second", 8, early, forward_s[1]))
    )


def iteration_s(job: Job, ranks: int, rate: float, plan: Plan | None = None, at_once: int = 0) -> float:
    links = {f"worker{rank}": ((0.0, rate),) for rank in range(ranks)}
    cluster = Cluster(ranks, 0, links, exchange=Exchange.COLLECTIVE)
    options = Options(
        iterations=8, partition_bytes=BLOCK_BYTES if plan else WHOLE, plan=plan, at_once=at_once, watchdog_s=1e9
    )
    return float(simulate(job, cluster, None, options).iteration_s(4).mean())


def sharded_s(profile: Profile, sharding: Sharding, rate: float) -> float:
    job, plan = job_of_shards(profile, sharding)
    return iteration_s(job, sharding.shards * sharding.replicas, rate, plan, at_once=4 if plan else 0)


@pytest.mark.parametrize(
    ("sharding", "expected_s"),
    [
        # Forward gathers 2 and 4 bytes, backward too; gloo's reduce-scatter sends 4 and 8; computing takes 11 s. The
        # second module's gatherings come right after another one, and take half as long again.
        (Sharding(2), 11 + 8 + 8 + 12),
        (Sharding(2, keeps=True), 11 + 8 + 12),
        (Sharding(1, replicas=2), 11 + 12),
        # The all-reduce between replicas is of what a rank keeps, 2 and 4 bytes, and sends as much.
        (Sharding(2, replicas=2), 11 + 8 + 8 + 12 + 6),
        # Three of four parts are gathered, 3 and 6 bytes.
        (Sharding(4), 11 + 9 + 9 + 18),
        # Each gathering waits for three messages, and a reduction for six.
        (Sharding(4, message_s=0.1), 11 + 9 + 9 + 18 + 4 * 0.3 + 2 * 0.6),
        # A ring leaves a host once, for any number of ranks on it.
        (Sharding(4, together=2), 11 + 9 + 9 + 18),
        # Shards within a host cost half there, for two ranks at once. Averages of both, 2 and 4 bytes, cross the link.
        (Sharding(2, replicas=2, together=2, within=0.5), 11 + 8 + 8 + 12 + 12),
    ],
)
def test_fsdp2_alone_does_one_thing_after_another(sharding: Sharding, expected_s: float) -> None:
    assert sharded_s(two_modules((1, 2), (3, 5)), sharding, rate=1.0) == pytest.approx(expected_s)


def test_under_prophet_only_the_first_module_of_each_pass_is_waited_for() -> None:
    profile = two_modules((10, 10), (10, 10))
    # The last sum of 2 bytes, then the first gathering of 2 before forward, and one of 4 before backward.
    assert sharded_s(profile, Sharding(2, scheduled=True), rate=1.0) == pytest.approx(40 + 2 + 2 + 4)
    assert sharded_s(profile, Sharding(2, keeps=True, scheduled=True), rate=1.0) == pytest.approx(40 + 2 + 2)
    # Without shards forward waits for the average of 4 bytes.
    assert sharded_s(profile, Sharding(1, replicas=2, scheduled=True), rate=1.0) == pytest.approx(40 + 4)
    # Between replicas the second module's average, 4 bytes, begins with the first module's sum, and is on the wire when
    # that has come. Then the first module's average travels, 2 bytes, and is gathered, 2 bytes.
    between = Sharding(2, replicas=2, scheduled=True)
    assert sharded_s(profile, between, rate=1.0) == pytest.approx(40 + 2 + 4 + 2 + 2 + 4)
    # A program that reads all averages waits for the first module's, which comes last anyway.
    waits = Sharding(2, scheduled=True, waits=True)
    assert sharded_s(profile, waits, rate=1.0) == pytest.approx(40 + 2 + 2 + 4)


def test_under_prophet_each_part_comes_to_a_host_once() -> None:
    profile = two_modules((100, 100), (100, 100))
    # Two parts come from the other host, two quarters of 4 and of 8 bytes.
    together = Sharding(4, scheduled=True, together=2)
    assert sharded_s(profile, together, rate=1.0) == pytest.approx(400 + 2 + 2 + 4)
    assert sharded_s(profile, Sharding(4, scheduled=True), rate=1.0) == pytest.approx(400 + 3 + 3 + 6)


def test_a_module_is_a_layer_of_a_list_or_else_a_part_of_the_model() -> None:
    names = ["embeddings.word.weight", "embeddings.norm.bias", "encoder.layer.0.mlp.1.weight", "encoder.layer.0.bias"]
    rows = [GradientProfile(name, 4, 9.0 - place, 1.0) for place, name in enumerate([*names, "encoder.layer.1.bias"])]
    modules, members = modules_of(Profile("bert", tuple(rows)))
    assert [(each.name, each.size_bytes, each.generation_s, each.forward_s) for each in modules.gradients] == [
        ("embeddings", 8, 9.0, 2.0),
        ("encoder.layer.0", 8, 7.0, 2.0),
        ("encoder.layer.1", 4, 5.0, 1.0),
    ]
    assert members == [(0, 1), (2, 3), (4,)]


def test_with_two_phases_forward_waits_for_sums_and_hides_the_rest() -> None:
    profile = Profile("two", (GradientProfile("first", 8, 8.0, 4.0), GradientProfile("second", 8, 4.0, 4.0)))
    cut = Borders.of_gradients([8, 8])
    # Backward takes 8 s and sums the second gradient meanwhile. Then come 4 s for the first one's sum, 4 s for its
    # gathering, and forward with its 8 s.
    assert iteration_s(job_of_phases(profile, cut), 2, 1.0) == pytest.approx(8 + 4 + 4 + 8)
    # All-reduces take 8 s each, and all 16 s but 4 of them after backward.
    assert iteration_s(job_of_cut(profile, cut, barrier=True), 2, 1.0) == pytest.approx(8 + 12 + 8)


def test_as_many_modules_come_ahead_as_in_a_job() -> None:
    order = pytest.importorskip("prophet_fsdp.order")
    assert AHEAD == order.AHEAD
