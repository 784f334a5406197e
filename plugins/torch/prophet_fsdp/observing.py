"""Watching of FSDP2 without Prophet (PROPHET_SCHEDULER=observe), which does not exist yet: a warning says so."""

from __future__ import annotations

from typing import Any

from prophet_ddp.observing import settings
from prophet_scheduler.frontends.notices import warn_once

__all__ = ["settings", "take_over"]


def take_over(module: Any, told: Any) -> None:
    """Leave the module as it is."""
    warn_once("Prophet stays off: it cannot observe FSDP2 yet, only DistributedDataParallel")
