"""Prophet: a communication scheduler for data-parallel training on slow networks.

Only the version and the question about this process live here; importing the package must stay cheap, because the
BytePS autoload imports it in every training process.
"""

from __future__ import annotations

import sys
from typing import Any

__version__ = "0.1.0"


def status() -> dict[str, Any] | None:
    """Return what this process's job does under Prophet, at most about a second old, as a line of `prophet top --json`.

    Times are seconds, sizes bytes, rates bytes per second. None before Prophet schedules anything here, in a fork of
    such a process, and with PROPHET_STATUS=0 where nothing else is watched. Waits for nothing.
    """
    observer: Any = sys.modules.get("prophet_scheduler.watch.observer")
    return observer.status_here() if observer is not None else None
