"""Console of a command's tables."""

from __future__ import annotations

import os

from rich.console import Console

IN_A_PIPE = 200
"""Letters in a line of a file or a pipe, where nothing is to be cut; rich would take 80."""


def screen() -> Console:
    """Return a console as wide as the terminal, or as COLUMNS says."""
    console = Console()
    return console if console.is_terminal or "COLUMNS" in os.environ else Console(width=IN_A_PIPE)
