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


def test_policies_without_predictions_plan_an_order_and_a_credit() -> None:
    assert get_policy("fifo").plan(PROFILE, NETWORK) == Plan(policy="fifo")
    p3 = get_policy("p3").plan(PROFILE, NETWORK)
    assert (p3.push.credit, p3.push.order) == (1, {i: i for i in range(161)})
    assert get_policy("bytescheduler", credit_bytes=777).plan(PROFILE, NETWORK).push.credit == 777


@pytest.mark.parametrize(("ids", "order"), [((7, 8, 9), {}), ((7, 9, 8), {7: 0, 9: 1, 8: 2})])
def test_prophet_ranks_ids_only_if_they_do_not_rise_in_forward_order(
    ids: tuple[int, ...], order: dict[int, int]
) -> None:
    gradients = tuple(GradientProfile(f"g{i}", 4096, 0.6 - i / 10, 0.1) for i in range(3))
    assert get_policy("prophet").plan(Profile("ids", gradients, ids), NETWORK).push.order == order


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
