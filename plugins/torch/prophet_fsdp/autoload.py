"""Autoload: switches Prophet on in a process with PROPHET_SCHEDULER set, at its first `fully_shard`.

Rule of this file: the moment of loading, as in prophet_ddp/autoload.py, which has the import hook. The first call of
`fully_shard` imports the rest.

A wrong setting ends the process with one line and status 2. A failure of Prophet itself is one warning, and FSDP2 stays
as it is.
"""

from __future__ import annotations

import functools
import sys
from types import ModuleType
from typing import Any

from prophet_ddp.autoload import call_after_import, takeover_in
from prophet_scheduler.frontends.importlib_bootstrap import passed_over
from prophet_scheduler.frontends.notices import logger

MODULE = "torch.distributed.fsdp._fully_shard._fully_shard"


def stand_behind(defining: ModuleType) -> None:
    """Hand each module that is sharded to Prophet, from now on."""
    original = defining.fully_shard

    @passed_over
    @functools.wraps(original)
    def fully_shard(module: Any, *args: Any, **kwargs: Any) -> Any:
        takeover = takeover_in("prophet_fsdp")
        sharded = original(module, *args, **kwargs)
        if takeover is not None:
            first = sharded[0] if isinstance(sharded, list) else sharded  # A list has one state.
            try:
                takeover.take_over(first, takeover.settings())
            except Exception as error:
                logger.warning("Prophet stays off: %s: %s", type(error).__name__, error)
        return sharded

    for name, place in list(sys.modules.items()):
        if name.startswith("torch.distributed") and vars(place).get("fully_shard") is original:
            vars(place)["fully_shard"] = fully_shard


call_after_import(MODULE, stand_behind)
