"""Prophet: a communication scheduler for data-parallel training on slow networks.

This file has only the version and this process's status. Importing the package must stay cheap, because the BytePS
autoload does so in every training process.
"""

from __future__ import annotations

import sys
from typing import Any

__version__ = "0.1.0"


def status() -> dict[str, Any] | None:
    """Return this process's status under Prophet, at most about a second old, as in a line of `prophet top --json`.

    Times are seconds, sizes bytes, rates bytes per second. None before Prophet schedules anything here, in a fork of
    such a process, and with PROPHET_STATUS=0 if nothing else is watched. Does not block.
    """
    observer: Any = sys.modules.get("prophet_scheduler.watch.observer")
    return observer.status_here() if observer is not None else None
