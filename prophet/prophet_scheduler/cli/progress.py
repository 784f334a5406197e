"""A progress bar for a command that is mostly quick, where it is not.

Rule of this file: when a bar is drawn and what is on it; what is under way says so itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress

from prophet_scheduler.lab.session import bar_columns

PATIENCE_S = 1.0
"""What takes less has no bar."""

Report = Callable[[float, str], None]
"""Told what share of all is done, 0 to 1, and what is under way."""


@contextmanager
def progress_where_slow(console: Console, now: Callable[[], float] = time.monotonic) -> Iterator[Report]:
    """A bar on a terminal from PATIENCE_S on, of which nothing is left at the end. `now` is in seconds."""
    progress = Progress(*bar_columns(), console=console, transient=True)
    task = progress.add_task("", total=1.0)
    began_s, drawn = now(), False

    def report(share: float, words: str) -> None:
        nonlocal drawn
        progress.update(task, completed=share, description=words)
        if not drawn and console.is_interactive and now() - began_s >= PATIENCE_S:
            drawn = True
            progress.start()

    try:
        yield report
    finally:
        if drawn:
            progress.stop()
