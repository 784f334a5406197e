"""The profile that a replay runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.profile import GradientProfile, Profile
from prophet_scheduler.lab.job_config import ReplayJob
from prophet_scheduler.lab.workload import replayed_profile, scaled
from prophet_scheduler.models.profiles import save_profile

RECORDED = Profile("mine", (GradientProfile("a", 400, 0.4, 0.3), GradientProfile("b", 1200, 0.1, 0.1)))


def job(**keys: object) -> ReplayJob:
    return ReplayJob.model_validate({"kind": "replay", **keys})


def test_built_in_profile_takes_all_settings(tmp_path: Path) -> None:
    asked = job(total_bytes="25.6MB", steps=13, backward_s=0.6, forward_s=0.3)
    profile = replayed_profile(asked, tmp_path, "x.yaml: job")
    assert len(profile.gradients) == 161
    assert len({gradient.generation_s for gradient in profile.gradients}) == 13
    assert (profile.backward_s, profile.forward_s) == pytest.approx((0.6, 0.3))


def test_recorded_profile_is_scaled(tmp_path: Path) -> None:
    save_profile(RECORDED, tmp_path / "mine.json", source="a test")
    assert replayed_profile(job(profile="mine.json"), tmp_path, "x.yaml: job").gradients == RECORDED.gradients
    asked = job(profile="mine.json", total_bytes=3200, backward_s=0.8, forward_s=0.2)
    profile = replayed_profile(asked, tmp_path, "x.yaml: job")
    assert [g.size_bytes for g in profile.gradients] == [800, 2400]
    assert [g.generation_s for g in profile.gradients] == [pytest.approx(0.8), pytest.approx(0.2)]
    assert [g.forward_s for g in profile.gradients] == [pytest.approx(0.15), pytest.approx(0.05)]


def test_sizes_are_whole_elements() -> None:
    assert [g.size_bytes for g in scaled(RECORDED, total_bytes=12).gradients] == [4, 8]


def test_layers_without_times_share_forward() -> None:
    silent = Profile("silent", (GradientProfile("a", 4, 0.2), GradientProfile("b", 4, 0.1)))
    assert [g.forward_s for g in scaled(silent, forward_s=0.3).gradients] == [0.15, 0.15]


def test_wrong_settings_of_recorded_profile(tmp_path: Path) -> None:
    save_profile(RECORDED, tmp_path / "mine.json", source="a test")
    with pytest.raises(UserError, match=r"x.yaml: job.steps: a recorded profile has its own steps; leave it out"):
        replayed_profile(job(profile="mine.json", steps=4), tmp_path, "x.yaml: job")
    flat = Profile("flat", (GradientProfile("a", 4, 0.0),))
    with pytest.raises(UserError, match=r"'flat' has no generation times to scale to backward_s 0.6"):
        scaled(flat, backward_s=0.6)
