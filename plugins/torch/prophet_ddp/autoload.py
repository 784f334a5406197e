"""Autoload: switches Prophet on in a process with PROPHET_SCHEDULER set, at its first DistributedDataParallel.

Rule of this file: when to load. A line in site-packages (prophet-autoload.pth) imports this module if any variable of
Prophet is set, so a misspelt one, or another engine's, causes one warning. An import hook watches for torch's module
that defines DistributedDataParallel. The first constructor call imports the rest of Prophet, so a process that does
not train never loads it.

A wrong setting ends the process with one line and status 2, on every rank, since all have the same environment. A
failure of Prophet itself causes one warning, and DistributedDataParallel stays as it is. takeover.py makes sure that
all ranks do the same.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import inspect
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from prophet_scheduler.frontends import threads
from prophet_scheduler.frontends.ending import end_last
from prophet_scheduler.frontends.importlib_bootstrap import around_import, passed_over
from prophet_scheduler.frontends.notices import speaks, warn_of_no_policy, warning_instead

MODULE = "torch.nn.parallel.distributed"
OFF = "Prophet stays off"
"""Beginning of the warning if a part of Prophet fails."""


def call_after_import(name: str, then: Callable[[ModuleType], None]) -> None:
    """Call `then` with the module of this name once it is imported; at once if it already is."""

    def run(module: ModuleType, execute: Callable[[ModuleType], None]) -> None:
        execute(module)
        with warning_instead(OFF):
            then(module)

    if name in sys.modules:
        then(sys.modules[name])
    else:
        around_import(name, run)


def stand_behind(ddp_class: Any) -> None:
    """From now on pass each new object of the class to Prophet."""
    original = ddp_class.__init__
    signature = inspect.signature(original)

    @passed_over
    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        takeover = takeover_in("prophet_ddp")
        original(self, *args, **kwargs)
        if takeover is not None:
            synced = signature.bind(self, *args, **kwargs).arguments.get("init_sync", True)
            takeover.take_over(self, takeover.settings(), synced)

    ddp_class.__init__ = init


def keep_lives_apart() -> None:
    """Keep a job's lives apart if its launcher may restart ranks and has one store for all. Alike on all ranks."""
    told = os.environ
    if told.get("TORCHELASTIC_USE_AGENT_STORE") == str(True) and told.get("TORCHELASTIC_MAX_RESTARTS", "0") != "0":
        from prophet_ddp import lives
        from prophet_scheduler.core.settings import DDP_SCHEDULER, OBSERVE

        if told.get(DDP_SCHEDULER, OBSERVE).strip().lower() != OBSERVE:
            lives.begin_apart()


@functools.cache
def takeover_in(package: str) -> Any:
    """Return a plugin's module for taking over, or the one for observing only. None, with one warning, if the variable
    is not set or loading fails, as it may with another torch.

    Called before anything is sent, so a wrong setting ends the process while no other rank waits for it.
    """
    with warning_instead(OFF):
        from prophet_scheduler.core.settings import DDP_SCHEDULER, OBSERVE

        if policy := os.environ.get(DDP_SCHEDULER):
            part = "observing" if policy.strip().lower() == OBSERVE else "takeover"
            takeover = importlib.import_module(f"{package}.{part}")
            takeover.settings()
            return takeover
        dist = sys.modules["torch.distributed"]
        speaks(not dist.is_initialized() or dist.get_rank() == 0)
        warn_of_no_policy(DDP_SCHEDULER, "DistributedDataParallel and FSDP2", os.environ)
    return None


def _imported(module: ModuleType) -> None:
    stand_behind(module.DistributedDataParallel)
    keep_lives_apart()


atexit.register(end_last)
threads.attend()
call_after_import(MODULE, _imported)
