"""Test of when a new plan is worth swapping in."""

from __future__ import annotations

import dataclasses

import pytest

from prophet_scheduler.core.network import Network
from prophet_scheduler.core.plan import Plan, QueuePlan, plan_changed
from prophet_scheduler.core.profile import Profile
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


def test_a_plan_is_not_changed_but_swapped() -> None:
    for value, field in ((Plan(), "policy"), (QueuePlan(), "credit")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(value, field, None)
