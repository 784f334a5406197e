"""The learning rate that follows delays, and its scheduler."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

from prophet_scheduler.frontends.torch.step_size import DelayAdaptiveLR, delay_adaptive


def test_it_is_the_papers_formula() -> None:
    assert delay_adaptive(0.5, 0.1, 9, 16) == pytest.approx(1 / (2 + 0.1 * 5))
    assert delay_adaptive(0.5, 0.0, 9, 16) == 0.5


def test_late_updates_and_late_steps_are_shorter() -> None:
    rates = [delay_adaptive(0.5, 0.1, 100, delay) for delay in (0, 1, 5, 50)]
    assert rates == sorted(rates, reverse=True) and len(set(rates)) == 4
    assert delay_adaptive(0.5, 0.1, 10_000, 1) == pytest.approx(1 / (2 + 0.1 * math.sqrt(10_001)))


@pytest.mark.parametrize(
    "wrong", [(0.0, 0.1, 1, 1), (math.inf, 0.1, 1, 1), (0.5, -1.0, 1, 1), (0.5, 0.1, -1, 1), (0.5, 0.1, 1, -1)]
)
def test_what_cannot_be_is_refused(wrong: tuple[float, float, int, int]) -> None:
    with pytest.raises(ValueError, match="give numbers"):
        delay_adaptive(*wrong)


def optimizer() -> torch.optim.SGD:
    groups = [{"params": [torch.zeros(2, requires_grad=True)], "lr": rate} for rate in (0.5, 0.1)]
    return torch.optim.SGD(groups, lr=1.0)


def test_the_scheduler_asks_after_each_step() -> None:
    plain = optimizer()
    seen = [(0, 0), (3, 1), (21, 4)]
    values = iter(seen)
    scheduler = DelayAdaptiveLR(plain, 0.2, lambda: next(values))
    for step, delay in seen:
        assert [group["lr"] for group in plain.param_groups] == [
            delay_adaptive(largest, 0.2, step, delay) for largest in (0.5, 0.1)
        ]
        if (step, delay) != seen[-1]:
            plain.step()
            scheduler.step()
    assert scheduler.state_dict()["constant"] == 0.2 and "_observe" not in scheduler.state_dict()


def test_it_takes_version_and_delay_of_an_asynchronous_optimizer() -> None:
    plain = optimizer()
    plain.asynchronous = SimpleNamespace(version=21, delay=4)  # type: ignore[attr-defined]
    DelayAdaptiveLR(plain, 0.2)
    assert plain.param_groups[0]["lr"] == delay_adaptive(0.5, 0.2, 21, 4)


def test_an_optimizer_without_delays_has_no_use_for_it() -> None:
    with pytest.raises(ValueError, match="leave this scheduler out"):
        DelayAdaptiveLR(optimizer(), 0.2)
