"""Errors of predictions: those of a policy if it was compared, else those of its engine."""

from __future__ import annotations

import pytest

from prophet_scheduler.lab import simulator_error
from prophet_scheduler.lab.simulator_error import prediction_error


def test_a_policy_has_the_errors_of_its_own_cells() -> None:
    for base in ("prophet", "stock", "ddp-prophet", "ddp-gloo"):
        usual, worst = prediction_error(base)
        assert usual is not None and worst is not None and 0 <= usual <= worst < 1


def test_one_that_was_never_compared_has_those_of_its_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    ratios = {"prophet": [1.02, 0.9], "stock": [1.3], "ddp-gloo": [1.01]}
    monkeypatch.setattr(simulator_error, "_ratios", lambda: ratios)
    assert prediction_error("pace") == pytest.approx((0.1, 0.3))
    assert prediction_error("ddp-pace") == pytest.approx((0.01, 0.01))
    assert prediction_error("mxnet-kvstore") == (None, None)
