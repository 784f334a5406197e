"""A profile for people: its table and its figure."""

from __future__ import annotations

from pathlib import Path

from prophet_scheduler.cli.profiles_view import plot_profile, profile_table
from support.profiles import resnet50


def test_the_view(tmp_path: Path) -> None:
    profile = resnet50(25_600_000)
    assert profile_table(profile).row_count == 14
    plot_profile(profile, tmp_path / "pattern.png")
    assert (tmp_path / "pattern.png").read_bytes().startswith(b"\x89PNG")
