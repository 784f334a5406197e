"""The recorded profiles in configs/profiles: real training as Prophet's profiler sees it.

Rule of this file: from finished runs of configs/profiles/record.yaml to profiles that name their source. It takes about
five minutes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from prophet_scheduler.core.profile import GradientProfile, Profile, find_steps
from prophet_scheduler.lab.config import Cell, load_experiment
from prophet_scheduler.lab.job_config import SyntheticJob
from prophet_scheduler.lab.records import read_worker
from prophet_scheduler.lab.session import run_session
from prophet_scheduler.models.profiles import load_profile, save_profile
from tools.kept import processor

PROFILES = Path("configs/profiles")
CONFIG = "record.yaml"
PACKAGES = {"torch": "torch", "gluon": "mxnet"}
"""Policies of the config, named after front ends, and the package that computes with each."""
DRAWN = "gluon-resnet50"
"""Name of the profile whose picture is on a page of results."""


def source(job: SyntheticJob, package: str, workers: int, where: str) -> str:
    return (
        f"recorded from {package} {metadata.version(package)} training {job.model} on random {job.image_size}x"
        f"{job.image_size} images, batch {job.batch_size}; one of {workers} workers on {where}"
    )


def named(learned: Profile, name: str, parameters: Sequence[str], sizes: Sequence[int]) -> Profile:
    """Return the profile with this name, and with the model's named gradients if all of them were recorded.

    Learned "gradients" may be blocks. A gradient is then one or several blocks, generated with the first of them.
    """
    blocks = iter(learned.gradients)
    gradients = []
    for parameter, size in zip(parameters, sizes, strict=True):
        parts: list[GradientProfile] = []
        while sum(part.size_bytes for part in parts) < size and (block := next(blocks, None)) is not None:
            parts.append(block)
        if sum(part.size_bytes for part in parts) != size:
            return dataclasses.replace(learned, name=name)
        generation_s = min(part.generation_s for part in parts)
        gradients.append(GradientProfile(parameter, size, generation_s, sum(part.forward_s for part in parts)))
    if next(blocks, None) is not None:
        return dataclasses.replace(learned, name=name)
    return Profile(name, tuple(gradients))


def job_of(cell: Cell) -> SyntheticJob:
    assert isinstance(cell.job, SyntheticJob)
    return cell.job


def profiles_of(cell: Cell, runs: Path) -> dict[str, Profile]:
    """Return the profile of each policy of a cell, by policy, from the folder of its runs. Raises UserError."""
    profiles = {}
    for policy in cell.policies:
        folder = runs / f"{policy.name}-repeat1"
        learned, worker = load_profile(folder / "worker0.profile.json"), read_worker(folder / "worker0.json")
        name = f"{policy.name}-{job_of(cell).model}"
        profiles[policy.name] = named(learned, name, worker.parameters, worker.parameter_bytes)
    return profiles


def draw(profile: Profile, path: Path) -> None:
    """Draw generation times by gradient, like the paper's Fig. 4, with a colour for each step."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    colours = pyplot.get_cmap("tab20")
    for number, step in enumerate(find_steps(profile)):
        indices = range(step.first, step.last + 1)
        times = [profile.gradients[i].generation_s * 1e3 for i in indices]
        axes.scatter(list(indices), times, s=14, color=colours(number % 20))
    axes.set(xlabel="gradient (0 belongs to the first layer)", ylabel="generated after backward began (ms)")
    axes.set_title(f"Stepwise pattern of {profile.name}")
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=150)


def measure(out: Path, results: Path) -> None:
    """Run the config, write each run's profile beside it, all or none, and draw a picture in `results`. Raises
    UserError.
    """
    experiment = load_experiment(PROFILES / CONFIG)
    run_session(experiment, out)
    cells = [(cell, profiles_of(cell, out / "runs" / f"cell{n}")) for n, cell in enumerate(experiment.cells)]
    for cell, profiles in cells:
        for policy, profile in profiles.items():
            where = source(job_of(cell), PACKAGES[policy], cell.cluster.workers, processor())
            save_profile(profile, PROFILES / f"{profile.name}.json", where)
            if profile.name == DRAWN:
                draw(profile, results / f"real-pattern-{DRAWN}.png")
            print(f"{profile.name}: {len(profile.gradients)} gradients in {len(find_steps(profile))} steps")
