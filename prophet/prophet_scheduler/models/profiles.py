"""Profiles from files, and the built-in ones.

Rule of this file: reading, checking and writing the JSON form of a Profile, and the names of the built-in ones,
which models/zoo/ makes from layer shapes. Learning one from a running job is in learn/profiler.py.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.files import parse_json, read_text, write_whole
from prophet_scheduler.core.profile import PROFILE_SCHEMA, GradientProfile, Profile
from prophet_scheduler.models import zoo

_GRADIENT_KEYS: dict[str, tuple[str, tuple[type, ...]]] = {
    "name": ("text", (str,)),
    "bytes": ("a whole number", (int,)),
    "generation_s": ("a number of seconds", (int, float)),
    "forward_s": ("a number of seconds", (int, float)),
}


@dataclass(frozen=True)
class GradientEntry:
    """One gradient in a profile's file: see GradientProfile."""

    name: str
    bytes: int
    generation_s: float
    forward_s: float


@dataclass(frozen=True, kw_only=True)
class ProfileFile:
    """A profile's file; `source` says how it was made. Gradients are in forward order, times in seconds."""

    schema: Literal[1] = PROFILE_SCHEMA
    name: str = ""
    source: str = ""
    gradients: list[GradientEntry]


def save_profile(profile: Profile, path: Path, source: str) -> None:
    """Writes `profile` as JSON, whole or not at all; `source` says how it was made."""
    entries = [GradientEntry(g.name, g.size_bytes, g.generation_s, g.forward_s) for g in profile.gradients]
    record = ProfileFile(name=profile.name, source=source, gradients=entries)
    write_whole(json.dumps(dataclasses.asdict(record), indent=1) + "\n", path)


def load_profile(path: Path) -> Profile:
    """Reads a profile. Raises UserError naming the file, the key and what to do."""
    try:
        record = parse_json(read_text(path), finite=False)
    except FileNotFoundError:
        raise UserError(f"{path}: no such profile file; record one with PROPHET_PROFILE_OUT=FILE") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: is not a profile (not UTF-8 text)") from None
    except json.JSONDecodeError as error:
        raise UserError(f"{path}: is not JSON (line {error.lineno}: {error.msg}), as a profile is") from None
    except ValueError as error:  # of a number that cannot be, or of lists without an end
        raise UserError(f"{path}: is not a profile ({error})") from None
    if not isinstance(record, dict):
        raise UserError(f"{path}: must be a mapping with the keys schema, name, source, gradients")
    if "gradients" not in record and record.get("schema", PROFILE_SCHEMA) == PROFILE_SCHEMA:
        raise UserError(f"{path}: is not a profile (it has no 'gradients'); record one with PROPHET_PROFILE_OUT=FILE")
    if record.get("schema") != PROFILE_SCHEMA:
        raise UserError(f"{path}: 'schema' is {record.get('schema')!r}; this Prophet reads schema {PROFILE_SCHEMA}")
    gradients = record.get("gradients")
    if not isinstance(gradients, list):
        raise UserError(f"{path}: 'gradients' must be a list")
    name = record.get("name", path.stem)
    if not isinstance(name, str):
        raise UserError(f"{path}: 'name' is {name!r}; it must be text")
    parsed = tuple(_gradient(f"{path}: gradients[{index}]", item) for index, item in enumerate(gradients))
    try:
        return Profile(name, parsed)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def _gradient(where: str, item: Any) -> GradientProfile:
    if not isinstance(item, dict):
        raise UserError(f"{where} must be a mapping with the keys {', '.join(_GRADIENT_KEYS)}")
    unknown = sorted(set(item) - set(_GRADIENT_KEYS))
    if unknown:
        raise UserError(f"{where}: unknown key '{unknown[0]}'; known are {', '.join(_GRADIENT_KEYS)}")
    for key, (wanted, kinds) in _GRADIENT_KEYS.items():
        if key not in item:
            raise UserError(f"{where}: '{key}' is missing; give {wanted}")
        if not isinstance(item[key], kinds) or isinstance(item[key], bool):
            raise UserError(f"{where}: '{key}' is {item[key]!r}; it must be {wanted}")
    entry = GradientEntry(**item)
    return GradientProfile(entry.name, entry.bytes, float(entry.generation_s), float(entry.forward_s))


def resnet50(
    total_bytes: int | None = None, steps: int | None = None, backward_s: float = 0.6, forward_s: float = 0.3
) -> Profile:
    """The zoo's ResNet-50: 161 gradients in 13 steps and 102.2 MB, or as the arguments say."""
    return zoo.profile("resnet50", total_bytes=total_bytes, steps=steps, backward_s=backward_s, forward_s=forward_s)


BUILTIN: dict[str, Callable[..., Profile]] = {model: partial(zoo.profile, model) for model in zoo.MODELS}
"""Profiles by name; each takes the keywords of prophet_scheduler.models.zoo.profile."""


def find_profile(source: str) -> Profile:
    """The built-in profile of that name, or that of the file. Raises UserError."""
    if source in BUILTIN:
        return BUILTIN[source]()
    if not Path(source).exists():
        raise UserError(
            f"{source}: no such profile file, and no built-in profile ({', '.join(BUILTIN)}); record one with "
            "PROPHET_PROFILE_OUT=FILE"
        )
    return load_profile(Path(source))
