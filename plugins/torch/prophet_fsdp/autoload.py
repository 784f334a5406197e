"""Autoload: switches Prophet on in a process with PROPHET_SCHEDULER set, at its first `fully_shard` or `replicate`.

Rule of this file: when to load, as in prophet_ddp/autoload.py, which has the import hook. The first call of either
function imports the rest.

A wrong setting ends the process with one line and status 2. A failure of Prophet itself causes one warning, and FSDP2
stays as it is.
"""

from __future__ import annotations

import functools
import sys
from types import ModuleType
from typing import Any

from prophet_ddp.autoload import OFF, call_after_import, takeover_in
from prophet_scheduler.frontends.importlib_bootstrap import passed_over
from prophet_scheduler.frontends.notices import warning_instead

FUNCTIONS = {
    "torch.distributed.fsdp._fully_shard._fully_shard": "fully_shard",
    "torch.distributed._composable.replicate_with_fsdp": "replicate",
}
"""Functions that shard a module, or replicate it in the same way, by the modules that define them."""


def stand_behind(function: str, defining: ModuleType) -> None:
    """From now on pass each module that this function is called for to Prophet."""
    original = getattr(defining, function)

    @passed_over
    @functools.wraps(original)
    def shard(module: Any, *args: Any, **kwargs: Any) -> Any:
        takeover = takeover_in("prophet_fsdp")
        sharded = original(module, *args, **kwargs)
        if takeover is not None:
            first = sharded[0] if isinstance(sharded, list) else sharded  # A list has one state.
            with warning_instead(OFF):
                takeover.take_over(first, takeover.settings())
        return sharded

    for name, place in list(sys.modules.items()):
        if name.startswith("torch.distributed") and vars(place).get(function) is original:
            vars(place)[function] = shard


for _module, _function in FUNCTIONS.items():
    call_after_import(_module, functools.partial(stand_behind, _function))
