"""The policies: their plans as values."""

from __future__ import annotations

import pytest

from prophet_scheduler.core.network import Network
from prophet_scheduler.core.plan import Plan
from prophet_scheduler.core.profile import GradientProfile, Profile
from prophet_scheduler.policies import get_policy
from support.profiles import resnet50
from support.virtual import transfers

PROFILE = resnet50(25_600_000)
NETWORK = Network(bandwidth=31.25e6, overhead_s=0.0005, ack_delay_s=0.004)


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
        (None, 2 << 20),  # not measured yet
        (Network(12.5e6), 200_000),  # nothing to cover: two partitions
        (Network(12.5e6, ack_delay_s=0.009), 300_000),  # as long as 1.1 partitions take: two others
        (Network(125e6, overhead_s=0.0005, ack_delay_s=0.0045), 500_000),  # 1.3 ms each
    ],
)
def test_prophets_credit_covers_the_acknowledgement_delay_and_no_more(network: Network | None, credit: int) -> None:
    plan = get_policy("prophet", partition_bytes=100_000).plan(PROFILE, network)
    assert plan.push.credit == pytest.approx(credit, abs=1)


def test_prophets_credit_fills_the_wire() -> None:
    network = Network(30e6, ack_delay_s=0.004)
    size = 131072
    credit = get_policy("prophet", partition_bytes=size).plan(None, network).push.credit
    assert credit is not None

    def rate(in_flight: int) -> float:
        stream = transfers(
            [size] * 200, network.bandwidth, network.overhead_s, network.ack_delay_s, in_flight=in_flight
        )
        return 200 * size / float(stream["time_s"][-1])

    assert rate(credit // size) > 0.99 * network.bandwidth
    assert rate(credit // size - 1) < 0.9 * network.bandwidth, "and no less would"


def test_a_thousand_gradients_are_planned() -> None:
    gradients = tuple(GradientProfile(f"g{i}", 4096, 0.6 * (1 - i // 20 / 50), 0.0003) for i in range(1000))
    plan = get_policy("prophet").plan(Profile("big", gradients, tuple(range(1000, 2000))), NETWORK)
    assert plan.push.order == {}, "ids in forward order are ranks themselves"


def test_ids_that_are_in_another_order_are_ranked() -> None:
    gradients = tuple(GradientProfile(f"g{i}", 4096, 0.6 - i / 10, 0.1) for i in range(3))
    plan = get_policy("prophet").plan(Profile("other", gradients, (7, 9, 8)), NETWORK)
    assert plan.push.order == {7: 0, 9: 1, 8: 2}
