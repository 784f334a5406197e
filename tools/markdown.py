"""Markdown for the pages of results.

Rule of this file: text from values; the pages themselves are their tools'.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def shown(value: float | None, form: str = ".3f") -> str:
    """A number in this format, and `-` for one that is not known."""
    return "-" if value is None else format(value, form)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table with a header, ending in a line break."""
    lines = ["| " + " | ".join(row) + " |" for row in (columns, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(columns), *lines[1:], ""])
