"""The policies: their plans as values."""

from __future__ import annotations

import dataclasses

import pytest

from prophet.errors import UserError
from prophet.model import Deadline, Network, Plan
from prophet.policies import POLICIES, get_policy, plan_changed
from prophet.profiles import resnet50

PROFILE = resnet50(25_600_000)
NETWORK = Network(bandwidth=31.25e6, overhead_s=0.0005, ack_delay_s=0.004)


def test_an_unknown_policy_lists_the_known_ones() -> None:
    with pytest.raises(UserError, match="unknown policy 'oracle'; known policies are fifo, p3, bytescheduler, prophet"):
        get_policy("oracle")


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_plans_before_anything_is_known(name: str) -> None:
    plan = get_policy(name).plan(None, None)
    assert plan.policy == name
    assert not plan.push.deadlines


def test_fifo_leaves_everything_to_arrival() -> None:
    assert get_policy("fifo").plan(PROFILE, NETWORK) == Plan(policy="fifo")


def test_p3_sends_one_slice_at_a_time_in_forward_order() -> None:
    plan = get_policy("p3").plan(PROFILE, NETWORK)
    assert plan.push.credit == 1
    assert plan.push.order == {i: i for i in range(161)}


def test_bytescheduler_keeps_the_credit_it_was_given() -> None:
    assert get_policy("bytescheduler", credit_bytes=777).plan(PROFILE, NETWORK).push.credit == 777


@pytest.mark.parametrize(
    ("network", "credit"),
    [
        (None, 400_000),  # not measured yet: twice the least
        (Network(12.5e6), 200_000),  # nothing to cover: two partitions
        (Network(125e6, overhead_s=0.0005, ack_delay_s=0.0045), 725_000),  # a partition and 5 ms of wire
    ],
)
def test_prophets_credit_is_the_measured_rate_times_the_delay(network: Network | None, credit: int) -> None:
    plan = get_policy("prophet", partition_bytes=100_000).plan(PROFILE, network)
    assert plan.push.credit == pytest.approx(credit, abs=1)


def test_prophet_keeps_the_wire_free_for_gradient_0() -> None:
    plan = get_policy("prophet").plan(PROFILE, NETWORK, jitter_s=0.002)
    assert plan.push.deadlines == (Deadline(PROFILE.backward_s, 0),)
    assert plan.deadline_slack_s == 0.002
    assert plan.network == NETWORK
    assert plan.generation_s[0] == PROFILE.backward_s


def test_a_plan_is_swapped_only_for_a_material_change() -> None:
    policy = get_policy("prophet")
    plan = policy.plan(PROFILE, NETWORK)
    assert not plan_changed(plan, policy.plan(PROFILE, dataclasses.replace(NETWORK, bandwidth=33e6)))
    assert plan_changed(plan, policy.plan(PROFILE, dataclasses.replace(NETWORK, bandwidth=40e6)))
    assert plan_changed(policy.plan(None, None), plan)
