"""Shared parts of a config's schema.

Rule of this file: pydantic types that several sections use, and the form of a key in a message. Unknown keys are
errors.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from prophet_scheduler.core.units import MOST_S, parse_rate, parse_size

MOST_COUNT = 10**6
"""Maximum number of iterations, samples or repeats of a job; a larger number must be a mistake."""
Seconds = Annotated[float, Field(gt=0, le=MOST_S)]
NotNegative = Annotated[float, Field(ge=0, le=MOST_S)]
Count = Annotated[int, Field(ge=1, le=MOST_COUNT)]
Seed = Annotated[int, Field(ge=0, lt=1 << 32)]
Size = Annotated[int, BeforeValidator(parse_size)]
"""Bytes; in a config e.g. 25.6MB or 128KiB."""
Rate = Annotated[float, BeforeValidator(parse_rate)]
"""Bits per second; in a config e.g. 250mbit or 10gbit."""


def key_of(steps: Iterable[int | str]) -> str:
    """Return the path of a value as text, such as `sweep[0].job.kind`; empty for the whole config."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps).lstrip(".")


class Strict(BaseModel):
    """Immutable section of a config; unknown keys, wrong types, infinite numbers and NaN are errors."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)
