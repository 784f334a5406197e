"""Profile of a replay: built-in or recorded, scaled according to the config, and with its sizes on the wire.

Rule of this file: profiles in, a profile out; the only file that it reads is the recorded profile.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.profile import Profile
from prophet_scheduler.lab.job_config import ReplayJob
from prophet_scheduler.models import zoo
from prophet_scheduler.models.profiles import load_profile

ELEMENT_BYTES = 4
"""Bytes per element of a replayed gradient (float32)."""


def replayed_profile(job: ReplayJob, folder: Path, where: str) -> Profile:
    """Return the profile of `job`; a recorded one is in `folder`, beside the config. Raises UserError that names the
    job's place in the config, `where`.
    """
    if job.profile in zoo.MODELS:
        asked = {key: getattr(job, key) for key in ("total_bytes", "steps", "backward_s", "forward_s", "device")}
        keywords = {key: value for key, value in asked.items() if value is not None}
        if job.device is not None:
            keywords["batch_size"] = job.batch_size
        try:
            return zoo.profile(job.profile, **keywords)
        except UserError as error:
            raise UserError(f"{where}: {error}") from None
    path = folder / job.profile
    if not path.exists():
        known = ", ".join(zoo.MODELS)
        raise UserError(f"{where}.profile: {path} is missing; name a profile file or a built-in profile ({known})")
    for key, what in (("device", "times"), ("steps", "steps")):
        if getattr(job, key) is not None:
            raise UserError(f"{where}.{key}: a recorded profile has its own {what}; leave it out")
    return scaled(load_profile(path), job.total_bytes, job.backward_s, job.forward_s)


def on_the_wire(profile: Profile, compression: str) -> Profile:
    """Return `profile` with its gradients' sizes on the wire. `compression` is that of the job's config."""
    if compression == "none":
        return profile
    gradients = tuple(replace(gradient, size_bytes=gradient.size_bytes // 2) for gradient in profile.gradients)
    return replace(profile, gradients=gradients)


def scaled(
    profile: Profile, total_bytes: int | None = None, backward_s: float | None = None, forward_s: float | None = None
) -> Profile:
    """Return `profile` with its sizes and times scaled to these totals.

    Sizes are whole float32 elements. If the profile has no forward times, layers share `forward_s` equally. Raises
    UserError if `backward_s` is given but the profile has no generation times.
    """
    bytes_by = 1.0 if total_bytes is None else total_bytes / profile.total_bytes
    if backward_s is not None and profile.backward_s == 0:
        raise UserError(f"profile {profile.name!r} has no generation times to scale to backward_s {backward_s:g}")
    backward_by = 1.0 if backward_s is None else backward_s / profile.backward_s
    forward_by, forward_each = 1.0, 0.0
    if forward_s is not None and profile.forward_s > 0:
        forward_by = forward_s / profile.forward_s
    elif forward_s is not None:
        forward_each = forward_s / len(profile.gradients)
    return replace(
        profile,
        gradients=tuple(
            replace(
                gradient,
                size_bytes=max(1, round(gradient.size_bytes * bytes_by / ELEMENT_BYTES)) * ELEMENT_BYTES,
                generation_s=gradient.generation_s * backward_by,
                forward_s=gradient.forward_s * forward_by + forward_each,
            )
            for gradient in profile.gradients
        ),
    )
