"""Progress bar for commands that are usually quick, shown only if they are slow.

Rule of this file: when to draw a bar, and what to show on it. The work reports its own progress.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress

from prophet_scheduler.lab.session import bar_columns

PATIENCE_S = 1.0
"""Seconds after which a bar appears."""

Report = Callable[[float, str], None]
"""Callback for progress: the finished fraction, 0 to 1, and the current work."""


@contextmanager
def progress_where_slow(console: Console, now: Callable[[], float] = time.monotonic) -> Iterator[Report]:
    """Show a bar on a terminal after PATIENCE_S, and remove it at the end. `now` returns seconds."""
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
