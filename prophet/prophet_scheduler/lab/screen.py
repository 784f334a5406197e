"""Console and style of the commands' tables."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

IN_A_PIPE = 200
"""Characters per line in a file or a pipe, enough to cut nothing; rich's default is 80."""


def screen() -> Console:
    """Return a console as wide as the terminal or COLUMNS, else IN_A_PIPE."""
    console = Console()
    return console if console.is_terminal or "COLUMNS" in os.environ else Console(width=IN_A_PIPE)


def table_of(
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    title: str,
    caption: str | None = None,
    folds: int = 0,
    padding: int = 1,
) -> Table:
    """Return a table with a title above and a caption below; an empty row is a rule.

    Only the column `folds` may take several lines. The others align to the right, and are never cut.
    """
    table = Table(title=title, caption=caption, title_justify="left", caption_justify="left", box=SIMPLE)
    table.padding = (0, padding)
    rows = list(rows)
    for place, heading in enumerate(headings):
        if place == folds:
            table.add_column(heading, overflow="fold", justify="right" if place else "left")
        else:
            cells = [*heading.splitlines(), *(row[place] for row in rows if row)]
            table.add_column(heading, justify="right", width=max(map(len, cells), default=0))
    for row in rows:
        if row:
            table.add_row(*row)
        else:
            table.add_section()
    return table
