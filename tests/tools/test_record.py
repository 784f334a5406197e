"""Recorded profiles: named after what was trained, with the model's own names, and where they came from."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from prophet_scheduler.core.profile import Profile, find_steps
from prophet_scheduler.lab.config import load_experiment
from prophet_scheduler.lab.job_config import SyntheticJob
from prophet_scheduler.lab.jobs.record import WorkerRecord, write_record
from prophet_scheduler.models.profiles import load_profile, save_profile
from support.profiles import resnet50
from tools import record

PROFILES = Path(__file__).parents[2] / "configs" / "profiles"


def test_a_finished_cell_gives_a_profile_for_each_front_end(tmp_path: Path) -> None:
    experiment = load_experiment(PROFILES / record.CONFIG)
    whole = resnet50()
    # As PyTorch's front end sends them: what is large in several parts.
    most = 1_000_000
    parts = [
        dataclasses.replace(gradient, size_bytes=min(most, gradient.size_bytes - start), forward_s=0.0)
        for gradient in whole.gradients
        for start in range(0, gradient.size_bytes, most)
    ]
    learned = Profile("learned", tuple(parts))
    assert len(parts) > len(whole.gradients)
    sizes = [gradient.size_bytes for gradient in whole.gradients]
    for policy in experiment.cells[0].policies:
        folder = tmp_path / f"{policy.name}-repeat1"
        folder.mkdir()
        save_profile(learned, folder / "worker0.profile.json", "learned")
        count = 161 if policy.name == "torch" else 3
        known = [f"layer{number}.weight" for number in range(count)]
        worker = WorkerRecord([], [], parameters=known, parameter_bytes=sizes[:count])
        write_record(worker, folder / "worker0.json")
    profiles = record.profiles_of(experiment.cells[0], tmp_path)
    assert [profile.name for profile in profiles.values()] == ["torch-resnet18", "gluon-resnet18"]
    assert profiles["torch"].gradients[7].name == "layer7.weight"
    times = [(gradient.size_bytes, gradient.generation_s) for gradient in profiles["torch"].gradients]
    assert times == [(gradient.size_bytes, gradient.generation_s) for gradient in whole.gradients]
    assert profiles["gluon"].gradients == learned.gradients, "names that do not fit are left alone"


def test_the_source_says_what_was_trained_and_where() -> None:
    job = load_experiment(PROFILES / record.CONFIG).cells[1].job
    assert isinstance(job, SyntheticJob)
    said = record.source(job, "pytest", 2, "a machine")
    assert "training resnet50 on random 128x128 images, batch 16; one of 2 workers on a machine" in said


def test_the_shipped_profiles_are_those_of_the_config() -> None:
    experiment = load_experiment(PROFILES / record.CONFIG)
    names = {
        f"{policy.name}-{cell.job.model}"
        for cell in experiment.cells
        if isinstance(cell.job, SyntheticJob)
        for policy in cell.policies
    }
    shipped = [load_profile(path) for path in PROFILES.glob("*.json")]
    assert names <= {profile.name for profile in shipped}
    # Gluon's ResNet-50 has biases in some convolutions, so 32 gradients more than PyTorch's.
    assert {profile.name: len(profile.gradients) for profile in shipped} == {
        "gluon-resnet18": 62,
        "gluon-resnet50": 193,
        "torch-resnet18": 62,
        "torch-resnet50": 161,
    }


def test_gluon_hands_gradients_over_in_steps_as_the_paper_found() -> None:
    """Section 2.2, and 13 steps of ResNet-50 in figure 4. PyTorch's autograd hands each layer's over by itself."""
    names = ("gluon-resnet50", "torch-resnet50")
    steps = {name: len(find_steps(load_profile(PROFILES / f"{name}.json"))) for name in names}
    assert 10 <= steps["gluon-resnet50"] <= 20
    assert steps["torch-resnet50"] > 80
