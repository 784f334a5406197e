"""Plans, networks and profiles as values: when a plan is worth swapping in, and what cannot be."""

from __future__ import annotations

import dataclasses

import pytest

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.network import Network
from prophet_scheduler.core.plan import plan_changed
from prophet_scheduler.core.profile import GradientProfile, Profile
from prophet_scheduler.policies import get_policy
from support.profiles import resnet50

PROFILE = resnet50(25_600_000)
NETWORK = Network(bandwidth=31.25e6, overhead_s=0.0005, ack_delay_s=0.004)


def test_a_plan_is_swapped_only_for_a_material_change() -> None:
    policy = get_policy("prophet-paper")
    plan = policy.plan(PROFILE, NETWORK)
    assert not plan_changed(plan, policy.plan(PROFILE, dataclasses.replace(NETWORK, bandwidth=33e6)))
    assert plan_changed(plan, policy.plan(PROFILE, dataclasses.replace(NETWORK, bandwidth=40e6)))
    assert plan_changed(policy.plan(None, None), plan)
    doubled = tuple(dataclasses.replace(g, generation_s=2 * g.generation_s) for g in PROFILE.gradients)
    assert plan_changed(plan, policy.plan(Profile("doubled", doubled), NETWORK))
    shifted = tuple(dataclasses.replace(g, generation_s=g.generation_s + 0.001) for g in PROFILE.gradients)
    assert not plan_changed(plan, policy.plan(Profile("shifted", shifted), NETWORK))


def test_a_network_is_checked() -> None:
    with pytest.raises(UserError, match="must be above 0"):
        Network(0.0)
    with pytest.raises(UserError, match="must be 0 or more"):
        Network(1.0, overhead_s=-1.0)


def test_ids_must_match_the_gradients() -> None:
    with pytest.raises(UserError, match="2 ids for 1 gradients"):
        Profile("p", (GradientProfile("a", 4, 0.0),), ids=(0, 1))


def test_forward_times_by_id_and_the_rest_as_it_was() -> None:
    rows = tuple(GradientProfile(f"g{place}", 4, 1.0, 9.0) for place in range(3))
    known = Profile("some", rows, ids=(4, 7, 8)).with_forward({7: 0.2, 4: 0.1, 5: 3.0})
    assert [row.forward_s for row in known.gradients] == [0.1, 0.2, 9.0]
    assert known.gradient_ids == (4, 7, 8)
