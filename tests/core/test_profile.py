"""Profiles as values."""

from __future__ import annotations

import pytest

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.profile import GradientProfile, Profile


def test_ids_must_match_the_gradients() -> None:
    with pytest.raises(UserError, match="2 ids for 1 gradients"):
        Profile("p", (GradientProfile("a", 4, 0.0),), ids=(0, 1))


def test_forward_times_by_id_and_the_rest_as_it_was() -> None:
    rows = tuple(GradientProfile(f"g{place}", 4, 1.0, 9.0) for place in range(3))
    known = Profile("some", rows, ids=(4, 7, 8)).with_forward({7: 0.2, 4: 0.1, 5: 3.0})
    assert [row.forward_s for row in known.gradients] == [0.1, 0.2, 9.0]
    assert known.gradient_ids == (4, 7, 8)
