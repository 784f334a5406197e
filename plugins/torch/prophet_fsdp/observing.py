"""Watching of FSDP2 without Prophet (PROPHET_SCHEDULER=observe), which does not exist: one line says so."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from prophet_ddp.observing import settings
from prophet_scheduler.frontends.notices import speaks, warn_once

__all__ = ["settings", "take_over"]


def take_over(module: Any, told: Any) -> None:
    """Leave the module as it is."""
    speaks(dist.get_rank() == 0)
    warn_once(
        "Prophet stays off: observe sees DistributedDataParallel alone, not FSDP2; `prophet advise --policy fsdp2` "
        "says what Prophet would bring"
    )
