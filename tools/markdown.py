"""Markdown for the pages of results.

Rule of this file: text from values; each tool writes its page.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def shown(value: float | None, form: str = ".3f") -> str:
    """Return a number in this format, and `-` if it is unknown."""
    return "-" if value is None else format(value, form)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table with a header, ending in a line break."""
    lines = ["| " + " | ".join(row) + " |" for row in (columns, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(columns), *lines[1:], ""])
