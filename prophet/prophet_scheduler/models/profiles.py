"""Profile files: reading, checking and writing a Profile as JSON.

Rule of this file: files only. zoo/ makes the built-in profiles, learn/profiler.py learns one from a running job, and
kineto.py reads one from a trace of torch.profiler.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.files import read_bytes, write_whole
from prophet_scheduler.core.profile import PROFILE_SCHEMA, GradientProfile, Profile

GZIP = b"\x1f\x8b"
"""Start of a compressed file. Only traces are read compressed."""
RECORD = "record one with PROPHET_PROFILE_OUT=FILE, or a trace with torch.profiler"


@dataclass(frozen=True)
class GradientEntry:
    """One gradient in a profile file; see GradientProfile."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012, as pydantic reads it
    name: str
    bytes: int
    generation_s: float
    forward_s: float


@dataclass(frozen=True, kw_only=True)
class ProfileFile:
    """Profile file. `source` says how the profile was made. Gradients are in forward order, times in seconds."""

    schema: Literal[1] = PROFILE_SCHEMA
    name: str = ""
    source: str = ""
    gradients: list[GradientEntry]


def save_profile(profile: Profile, path: Path, source: str) -> None:
    """Write `profile` as JSON, whole or not at all. `source` says how it was made."""
    entries = [GradientEntry(g.name, g.size_bytes, g.generation_s, g.forward_s) for g in profile.gradients]
    record = ProfileFile(name=profile.name, source=source, gradients=entries)
    write_whole(json.dumps(dataclasses.asdict(record), indent=1) + "\n", path)


def load_profile(path: Path) -> Profile:
    """Read a profile, or a trace of torch.profiler. Raises UserError with the file, the key and what to do."""
    from pydantic import TypeAdapter, ValidationError  # needed only in jobs with a given profile

    try:
        content = read_bytes(path)
        if content.startswith(GZIP) or b'"traceEvents"' in content:
            from prophet_scheduler.models.kineto import profile_of_trace  # A job with a profile needs none of it.

            return profile_of_trace(content, path)
        file = TypeAdapter(ProfileFile).validate_json(content.decode(), strict=True)
    except FileNotFoundError:
        raise UserError(f"{path}: no such profile file; {RECORD}") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except ValidationError as error:
        first = error.errors()[0]
        key = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in first["loc"]).lstrip(".")
        raise UserError(f"{path}: is not a profile ({key or 'the whole'}: {first['msg']}); {RECORD}") from None
    except ValueError:
        raise UserError(f"{path}: is not a profile (not UTF-8 text)") from None
    rows = (GradientProfile(each.name, each.bytes, each.generation_s, each.forward_s) for each in file.gradients)
    try:
        return Profile(file.name or path.stem, tuple(rows))
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def find_profile(source: str) -> Profile:
    """Return the built-in profile of that name, or the profile in that file. Raises UserError."""
    from prophet_scheduler.models import zoo  # not needed in jobs, which only save profiles

    if source in zoo.MODELS:
        return zoo.profile(source)
    if not Path(source).exists():
        known = ", ".join(zoo.MODELS)
        raise UserError(f"{source}: no such profile file, and no built-in profile ({known}); {RECORD}")
    return load_profile(Path(source))
