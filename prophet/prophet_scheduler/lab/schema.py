"""Shared parts of a config's schema.

Rule of this file: pydantic types for keys of several parts, and the form of a key in a message. A key outside the
schema is an error.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from prophet_scheduler.core.units import MOST_S, parse_rate, parse_size

MOST_COUNT = 10**6
"""Maximum iterations, samples or repeats of a job; a larger number is a mistake."""
Seconds = Annotated[float, Field(gt=0, le=MOST_S)]
NotNegative = Annotated[float, Field(ge=0, le=MOST_S)]
Count = Annotated[int, Field(ge=1, le=MOST_COUNT)]
Seed = Annotated[int, Field(ge=0, lt=1 << 32)]
Size = Annotated[int, BeforeValidator(parse_size)]
"""Bytes; a config writes 25.6MB or 128KiB."""
Rate = Annotated[float, BeforeValidator(parse_rate)]
"""Bits per second; a config writes 250mbit or 10gbit."""


def key_of(steps: Iterable[int | str]) -> str:
    """Return the path of a value as text, such as `sweep[0].job.kind`; empty for the whole."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps).lstrip(".")


class Strict(BaseModel):
    """Mapping of a config: no other keys, no other types, no infinite numbers or NaN, and immutable."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)
