"""Tests of tools/baselines.py: the time to an accuracy."""

from __future__ import annotations

import pytest

from tools.baselines import EVERY, ITERATIONS, Trained


def test_the_time_to_an_accuracy_is_that_of_the_first_look_that_has_it() -> None:
    looks = [0.1, 0.3, 0.2, *[0.4] * (ITERATIONS // EVERY - 3)]
    run = Trained("ddp", 1e8, [0.5] * ITERATIONS, looks)
    assert run.seconds_to(0.3) == pytest.approx(2 * EVERY * 0.5)
    assert run.seconds_to(0.4) == pytest.approx(4 * EVERY * 0.5)
    assert run.seconds_to(0.5) is None
