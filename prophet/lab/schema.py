"""What the parts of a config's schema share.

Rule of this file: types of pydantic for keys that several parts have; a key that is no part of the schema is an error.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from prophet.core.units import parse_size

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Size = Annotated[int, BeforeValidator(parse_size)]
"""Bytes; a config writes 25.6MB or 128KiB."""


class Strict(BaseModel):
    """A mapping of a config: no other keys, no other types, and no changes afterwards."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
