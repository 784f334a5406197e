"""Pieces of a long measurement, a line of JSON each. Those that are there already are not measured again.

Rule of this file: reading and adding lines. Each tool defines its piece, and when there are enough.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.lab.records import first_error

T = TypeVar("T")


def read_pieces(path: Path, kind: type[T]) -> list[T]:
    """Return the pieces of the dataclass `kind`, none if there is no file. Raises UserError."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read ({error}); remove it") from None
    adapter, pieces = TypeAdapter(kind), []
    for number, line in enumerate(lines, 1):
        try:
            pieces.append(adapter.validate_json(line))
        except ValidationError as error:
            raise UserError(f"{path}:{number}: cannot be read ({first_error(error)}); remove the line") from None
    return pieces


def add_piece(path: Path, piece: Any) -> None:
    """Add one, a dataclass. Makes the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(asdict(piece)) + "\n")
