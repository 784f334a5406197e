"""Profiles of a few gradients, as tests write them."""

from __future__ import annotations

from prophet_scheduler.core.profile import GradientProfile, Profile


def profile(*gradients: tuple[int, float, float], ids: tuple[int, ...] = ()) -> Profile:
    """Return a profile of gradients (bytes, generation time, seconds of forward), most urgent first."""
    rows = (GradientProfile(f"g{place}", *gradient) for place, gradient in enumerate(gradients))
    return Profile("test", tuple(rows), ids)
