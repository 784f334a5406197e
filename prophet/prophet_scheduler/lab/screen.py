"""Console and style of the commands' tables."""

from __future__ import annotations

import os

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

IN_A_PIPE = 200
"""Characters per line in a file or a pipe, enough to cut nothing; rich's default is 80."""


def screen() -> Console:
    """Return a console as wide as the terminal or COLUMNS, else IN_A_PIPE."""
    console = Console()
    return console if console.is_terminal or "COLUMNS" in os.environ else Console(width=IN_A_PIPE)


def titled_table(title: str, caption: str | None = None) -> Table:
    """Return an empty table with a title above and a caption below."""
    return Table(title=title, caption=caption, title_justify="left", caption_justify="left", box=SIMPLE)
