"""Between when and when a parameter may travel."""

from __future__ import annotations

from prophet_papers.algorithms.caramel.windows import Window, Windows, windows_of_profile
from prophet_scheduler.core.profile import GradientProfile, Profile


def test_windows_by_hand() -> None:
    profile = Profile("p", (GradientProfile("a", 1, 3.0, 0.5), GradientProfile("b", 2, 1.0, 0.25)))
    windows = windows_of_profile(profile)
    assert windows == Windows((Window("b", 2, 1.0, 0.5), Window("a", 1, 3.0, 0.0)), 3.0, 0.75)
