"""Profiles as values."""

from __future__ import annotations

import pytest

from prophet.core.errors import UserError
from prophet.core.profile import GradientProfile, Profile


def test_ids_must_match_the_gradients() -> None:
    with pytest.raises(UserError, match="2 ids for 1 gradients"):
        Profile("p", (GradientProfile("a", 4, 0.0),), ids=(0, 1))
