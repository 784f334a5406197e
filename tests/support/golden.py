"""Golden files: values that every run gives alike, kept under tests/golden/ so that a change of one shows in a diff.

Rule of this file: reading, comparing and writing them; each test decides their content. Numbers are compared to the
last digit; `pytest --write-golden` (or `make golden`) writes them anew.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import pytest

Json: TypeAlias = "Mapping[str, Json] | Sequence[Json] | str | int | float | None"

FOLDER = Path(__file__).parents[1] / "golden"
LINES_SHOWN = 40


class Golden:
    """A test's comparison of its values with a file; it may write the file instead."""

    def __init__(self, folder: Path, *, write: bool) -> None:
        self._folder = folder
        self._write = write

    def check(self, name: str, value: Json) -> None:
        """Fail if `value` differs from the file `name`.json, and show the lines that differ."""
        path = self._folder / f"{name}.json"
        text = json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
        if self._write:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            return
        if not path.exists():
            pytest.fail(f"no {path}; `pytest --write-golden` writes it", pytrace=False)
        kept = path.read_text(encoding="utf-8")
        if text != kept:
            lines = difflib.unified_diff(kept.splitlines(), text.splitlines(), "kept", "now", n=1, lineterm="")
            shown = list(lines)
            left = len(shown) - LINES_SHOWN
            more = [f"... and {left} lines more"] if left > 0 else []
            advice = "where that is meant, `pytest --write-golden` (or `make golden`) writes the file anew"
            pytest.fail("\n".join([f"{path} differs; {advice}:", *shown[:LINES_SHOWN], *more]), pytrace=False)
