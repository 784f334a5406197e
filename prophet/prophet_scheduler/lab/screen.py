"""Console of a command's tables, and their look."""

from __future__ import annotations

import os

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

IN_A_PIPE = 200
"""Letters in a line of a file or a pipe, where nothing is to be cut; rich would take 80."""


def screen() -> Console:
    """Return a console as wide as the terminal, or as COLUMNS says."""
    console = Console()
    return console if console.is_terminal or "COLUMNS" in os.environ else Console(width=IN_A_PIPE)


def titled_table(title: str, caption: str | None = None) -> Table:
    """Return an empty table with its title above, and its caption below."""
    return Table(title=title, caption=caption, title_justify="left", caption_justify="left", box=SIMPLE)
