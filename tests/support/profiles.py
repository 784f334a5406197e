"""Profiles of a few gradients, as tests write them."""

from __future__ import annotations

from prophet_scheduler.core.profile import GradientProfile, Profile
from prophet_scheduler.models import zoo


def profile(*gradients: tuple[int, float, float], ids: tuple[int, ...] = ()) -> Profile:
    """Return a profile of gradients (bytes, generation time, seconds of forward), most urgent first."""
    rows = (GradientProfile(f"g{place}", *gradient) for place, gradient in enumerate(gradients))
    return Profile("test", tuple(rows), ids)


def resnet50(
    total_bytes: int | None = None, steps: int | None = None, backward_s: float = 0.6, forward_s: float = 0.3
) -> Profile:
    """Return the zoo's ResNet-50 with these sums and steps."""
    return zoo.profile("resnet50", total_bytes=total_bytes, steps=steps, backward_s=backward_s, forward_s=forward_s)
