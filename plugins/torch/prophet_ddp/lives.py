"""Lives of a job whose launcher keeps one store for all of them, as torchrun does if ranks may be restarted.

Rule of this file: the part of that store in which torch.distributed starts. meeting.py lets ranks find it.

torch names its entries in the store by group and rank alone, and those of an earlier life are still there. So gloo may
get the address of a dead rank: it fails after seconds, which costs one more restart, or it hangs. Here all ranks meet
first, and torch gets a part of the store for this life.
"""

from __future__ import annotations

import datetime
import functools
import inspect
import itertools
from typing import Any

from prophet_scheduler.frontends.importlib_bootstrap import passed_over
from prophet_scheduler.frontends.notices import warn_once

_numbers = itertools.count(1)


def begin_apart() -> None:
    """From now on, start `torch.distributed.init_process_group` in a part of the launcher's store, wherever torch would
    wait for all ranks in that store.
    """
    import torch.distributed as dist

    c10d: Any = dist.distributed_c10d
    original = c10d.init_process_group
    signature = inspect.signature(original)

    @passed_over
    @functools.wraps(original)
    def init(*args: Any, **kwargs: Any) -> Any:
        told = signature.bind(*args, **kwargs).arguments
        if _in_launchers_store(told) and not dist.is_initialized():
            timeout = told.get("timeout") or c10d.default_pg_timeout
            part = _own_part(told.get("rank", -1), told.get("world_size", -1), timeout)
            told["store"], told["rank"], told["world_size"] = part
            told.pop("init_method", None)
        return original(**told)

    for module in (c10d, dist, dist.device_mesh):
        if hasattr(module, "init_process_group"):
            module.init_process_group = init  # type: ignore[attr-defined,union-attr]


def _in_launchers_store(told: dict[str, Any]) -> bool:
    """Return True if gloo's ranks would look for each other there. Other backends wait for nobody in the store."""
    backend = told.get("backend")
    gloo = "gloo" in str(backend).lower() or (backend is None and told.get("device_id") is None)
    return gloo and told.get("store") is None and told.get("init_method") in (None, "env://")


def _own_part(rank: int, ranks: int, timeout: datetime.timedelta) -> tuple[Any, int, int]:
    """Return this life's part of the store, this rank, and the number of ranks, once all ranks have arrived. The
    arguments are -1 if the program gives none. Raises DistStoreError, as torch does, if a rank does not arrive.
    """
    import torch.distributed as dist

    from prophet_ddp.meeting import AGREE_LIMIT_S, Patience, SilentRank, meet

    c10d: Any = dist.distributed_c10d
    limit_s = timeout.total_seconds()

    def tell(rank: int) -> None:
        so_far = f"rank {rank} has not reached init_process_group, or not under Prophet, within {AGREE_LIMIT_S:g} s"
        warn_once(f"{so_far}; waiting for it up to {limit_s:g} s, as torch would")

    store, rank, ranks = next(c10d.rendezvous("env://", rank, ranks, timeout=timeout))
    store.set_timeout(timeout)
    part = c10d.PrefixStore(f"prophet/init/{next(_numbers)}", store)
    try:
        _, own = meet(part, rank, ranks, "", Patience(limit_s, tell))
    except SilentRank as error:
        raise dist.DistStoreError(
            f"rank {error.rank} has not reached init_process_group within {limit_s:g} s"
        ) from None
    # As in torch: everything else in the store has other prefixes.
    return c10d.PrefixStore("default_pg", own), rank, ranks
