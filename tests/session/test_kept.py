"""Kept results of a job: to JSON and back, the job that they belong to, and wrong ones."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from prophet_scheduler.core.cut import Cut, learning_cut
from prophet_scheduler.core.network import Network
from prophet_scheduler.core.profile import GradientProfile, Profile
from prophet_scheduler.models import zoo
from prophet_scheduler.policies import get_policy
from prophet_scheduler.session.kept import (
    Believed,
    Kept,
    Prior,
    kept_from_json,
    kept_name,
    kept_to_json,
    with_ids_of_the_job,
)
from prophet_scheduler.session.messages import Remembered
from prophet_scheduler.session.session import Session
from prophet_scheduler.simulate.cluster import Cluster, Costs
from prophet_scheduler.simulate.job import alone, job_of_profile
from prophet_scheduler.simulate.run import Options, simulate
from support.sessions import plan_at, session

PROFILE = Profile(
    "kept",
    tuple(GradientProfile(f"gradient{n}", 1000 + n, (3 - n) / 10, 0.01) for n in (0, 1, 2)),
    (0, 1, 2),
)
NETWORK = Network(1e8, 0.0001, 0.002)
BELIEVED = Believed(Cut.uniform(1 << 20), "", True, 0.5, 0.01)
KEPT = Kept(PROFILE, NETWORK, learning_cut(100 << 20), (BELIEVED,))


@pytest.mark.parametrize("kept", [KEPT, Kept(PROFILE), Kept(PROFILE, None, Cut.uniform(1 << 20))])
def test_it_survives_being_written(kept: Kept) -> None:
    assert kept_from_json(kept_to_json(kept)) == kept


def changed(**over: Any) -> str:
    return json.dumps({**json.loads(kept_to_json(KEPT)), **over})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "nonsense",
        kept_to_json(KEPT)[:-30],
        changed(schema=2),
        changed(profile=[]),
        changed(profile=[[0, -4, 0.1, 0.1]]),
        changed(profile=[[0, 4, "x", 0.1]]),
        changed(profile=[[0, 4, 0.1]]),
        changed(profile=[[0, 4, float("nan"), 0.1]]),
        changed(network={"bandwidth": -1.0}),
        changed(network={"speed": 1.0}),
        changed(network=7),
        changed(cut=[[4096, 131072]]),
        changed(cut=[[0, 1]]),
        changed(cut=7),
    ],
)
def test_what_it_did_not_write_is_refused_with_a_line(text: str) -> None:
    with pytest.raises(ValueError) as caught:
        kept_from_json(text)
    assert "\n" not in str(caught.value)


def test_another_job_has_another_name() -> None:
    names = {
        kept_name([1, 2], {"workers": "2"}),
        kept_name([1, 2], {"workers": "3"}),
        kept_name([2, 1], {"workers": "2"}),
        kept_name([12], {"workers": "2"}),
    }
    assert len(names) == 4
    assert kept_name([1, 2], {"a": "1", "b": "2"}) == kept_name((1, 2), {"b": "2", "a": "1"})


def test_a_profile_from_a_file_gets_the_places_of_its_gradients_in_the_arena() -> None:
    sizes = [100, 3996, 1 << 20, 4096]
    whole = Profile("file", tuple(GradientProfile("g", size, 0.1) for size in (sum(sizes) - 8192, 4096, 4096)))
    placed = with_ids_of_the_job(whole, sizes, arena=True)
    assert placed is not None and placed.ids == (0, (sum(sizes) - 8192) // 4096, (sum(sizes) - 4096) // 4096)
    small = Profile("file", tuple(GradientProfile("g", size, 0.1) for size in sizes))
    placed = with_ids_of_the_job(small, sizes, arena=True)
    assert placed is not None and placed.ids == (0, 1, 2, 257), "two of them begin in the first unit"
    counted = with_ids_of_the_job(small, sizes, arena=False)
    assert counted is not None and counted.ids == (0, 1, 2, 3)


def test_a_profile_of_another_job_is_none() -> None:
    profile = Profile("file", (GradientProfile("g", 1000, 0.1), GradientProfile("g", 2000, 0.1)))
    assert with_ids_of_the_job(profile, [1000, 2200], arena=True) is None
    assert with_ids_of_the_job(profile, [2000, 1000], arena=False) is None


def slower(profile: Profile, factor: float) -> Profile:
    gradients = (dataclasses.replace(g, generation_s=g.generation_s * factor) for g in profile.gradients)
    return dataclasses.replace(profile, gradients=tuple(gradients))


def test_what_is_measured_comes_first_and_what_is_kept_fills_the_rest() -> None:
    prior = Prior(KEPT)
    assert prior.fill(None, None) == (PROFILE, NETWORK)
    network = dataclasses.replace(NETWORK, bandwidth=1.2e8)
    assert prior.fill(None, network) == (PROFILE, network)
    assert not prior.over
    profile = slower(PROFILE, 1.3)
    assert prior.fill(profile, network) == (profile, network)
    assert prior.over and not prior.dropped
    assert prior.fill(None, None) == (None, None)


@pytest.mark.parametrize(
    ("profile", "network", "why"),
    [
        (None, Network(1e7, 0.001, 0.002), "a block takes"),
        (None, Network(1e10, 0.00001, 0.002), "a block takes"),
        (slower(PROFILE, 2.0), None, "backward takes"),
        (slower(PROFILE, 0.5), NETWORK, "backward takes"),
    ],
)
def test_where_the_two_are_far_apart_nothing_of_it_is_used(
    profile: Profile | None, network: Network | None, why: str
) -> None:
    prior = Prior(KEPT)
    assert prior.fill(profile, network) == (profile, network)
    assert prior.over and prior.dropped.startswith(why)


MONITOR_S = 5.0


def seconds_of_a_job(rate: float, backward_s: float = 0.2) -> list[NDArray[Any]]:
    """The events of a simulated job, second by second, as an agent sees them."""
    profile = zoo.profile("resnet50", total_bytes=25_600_000, backward_s=backward_s, forward_s=0.1)
    links = {"worker0": ((0.0, rate),), "worker1": ((0.0, rate),)}
    job = job_of_profile(profile, alone(profile))
    events = simulate(
        job, Cluster(2, 1, links, Costs(0.0001, 0.0005)), get_policy("prophet"), Options(iterations=40)
    ).events
    since = np.searchsorted(events["time_s"], np.arange(1.0, events["time_s"][-1] + 1.0))
    return np.split(events, since)


def run(subject: Session, seconds: list[NDArray[Any]]) -> list[tuple[int, bool]]:
    """Return when plans were made, in whole seconds, and whether each is from the network of this job alone."""
    return [
        (now, subject.kept_was_dropped != "")
        for now, events in enumerate(seconds, start=1)
        if plan_at(subject, float(now), events) is not None
    ]


@pytest.fixture(scope="module")
def fast() -> list[NDArray[Any]]:
    return seconds_of_a_job(1e8)


@pytest.fixture(scope="module")
def kept(fast: list[NDArray[Any]]) -> Kept:
    """Return the kept results of a run on that network, as a file has them."""
    subject = session(monitor_s=MONITOR_S)
    run(subject, fast)
    assert subject.profiler.profile is not None
    return kept_from_json(kept_to_json(Kept(subject.profiler.profile, subject.network)))


def test_the_second_run_is_planned_before_its_first_event(fast: list[NDArray[Any]], kept: Kept) -> None:
    subject = session(monitor_s=MONITOR_S)
    subject.on(Remembered(kept))
    plan = plan_at(subject, 0.0, fast[0][:0])
    assert plan is not None and plan.network == kept.network
    assert plan.push.order == {}, "ids in forward order are ranks themselves"
    run(subject, fast)
    assert subject.kept_was_dropped == ""
    assert subject.plan.network is not None and subject.plan.network.bandwidth == pytest.approx(1e8, rel=0.05)


@pytest.mark.parametrize("rate", [2.5e7, 4e8])
def test_what_was_kept_of_another_network_is_dropped_within_a_monitor_period(rate: float, kept: Kept) -> None:
    subject = session(monitor_s=MONITOR_S)
    subject.on(Remembered(kept))
    seconds = seconds_of_a_job(rate)
    assert plan_at(subject, 0.0, seconds[0][:0]) is not None
    run(subject, seconds[: int(MONITOR_S)])
    assert subject.kept_was_dropped.startswith("a block takes")
    run(subject, seconds)
    assert subject.plan.network is not None and subject.plan.network.bandwidth == pytest.approx(rate, rel=0.1)


def test_what_was_kept_of_another_batch_size_is_dropped(kept: Kept) -> None:
    subject = session(monitor_s=MONITOR_S)
    subject.on(Remembered(kept))
    run(subject, seconds_of_a_job(1e8, backward_s=0.5))
    assert subject.kept_was_dropped.startswith("backward takes")
    assert subject.plan.generation_s == {} or max(subject.plan.generation_s.values()) > 0.4
