"""Check that the installed torch has the internals by which Prophet replaces the reducer.

Rule of this file: checks that need no process group and change nothing. Names are looked up in the source of the
installed torch, so one that another release has renamed is found before a job starts. `prophet doctor` prints the
findings, and `prophet run` checks them before it starts a policy.
"""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist

from prophet_ddp.reducer import HANDED_BACK, LateReducer
from prophet_scheduler.core.settings import DDP_NCCL
from prophet_scheduler.frontends.torch.optimizer import too_old

_METHODS = (
    "_build_params_for_reducer",
    "_ddp_init_helper",
    "_register_builtin_comm_hook",
    "register_comm_hook",
    "join",
)
"""Methods of DistributedDataParallel that takeover.py calls or wraps."""
_ATTRIBUTES = (
    *("process_group", "reducer", "logger", "static_graph", "find_unused_parameters"),
    *("gradient_as_bucket_view", "_static_graph_delay_allreduce_enqueued", "_comm_hooks"),
)
"""Attributes of its objects that Prophet reads. Two are replaced; two are set while torch's reducer is recreated."""
_OF_DISTRIBUTED = (
    *("get_process_group_ranks", "new_group", "BroadcastOptions", "DistError", "destroy_process_group"),
    *("_register_comm_hook", "_compute_bucket_assignment_by_size"),
)
_OF_C10D = ("PrefixStore", "_get_default_store")


@functools.cache
def check_torch(framework: str) -> tuple[tuple[str, bool, str], ...]:
    """Return (item, True if it is fine, a line to print) for each check. `framework` is torch."""
    return tuple(_findings())


def _findings() -> Iterator[tuple[str, bool, str]]:
    version = torch.__version__
    if not dist.is_available():
        yield "DistributedDataParallel", False, f"torch {version} was built without torch.distributed"
        return
    if dist.is_gloo_available():
        yield "DistributedDataParallel", True, f"torch {version}, with gloo"
    else:
        yield "DistributedDataParallel", False, f"torch {version} was built without gloo"
    missing = missing_names(torch.nn.parallel.distributed)
    unknown = unknown_requests(torch.nn.parallel.distributed)
    if old := too_old():
        line = f"{old}; jobs keep DistributedDataParallel as it is"
    elif missing:
        line = f"torch {version} has no {', '.join(missing)}, which Prophet relies on; train without PROPHET_SCHEDULER"
    elif unknown:
        line = f"torch {version} asks its reducer for {', '.join(unknown)}, which Prophet's has not; please report it"
    else:
        count = len(_METHODS) + len(_ATTRIBUTES) + len(_OF_DISTRIBUTED) + len(_OF_C10D)
        yield "Prophet for DDP", True, f"all {count} names of torch that it relies on are there; gloo on processors"
        yield "NCCL", True, f"tried on one GPU only: modules there keep DistributedDataParallel, unless {DDP_NCCL}=1"
        return
    yield "Prophet for DDP", False, line


def missing_names(module: ModuleType) -> list[str]:
    """Return the names that Prophet relies on and `module` (DistributedDataParallel's) or torch.distributed lacks."""
    ddp: Any = module.DistributedDataParallel
    named = {node.attr for node in ast.walk(_source(module)) if isinstance(node, ast.Attribute)}
    c10d = dist.distributed_c10d
    return [
        *(f"DistributedDataParallel.{name}" for name in _METHODS if not callable(getattr(ddp, name, None))),
        *(f"DistributedDataParallel().{name}" for name in _ATTRIBUTES if name not in named),
        *(f"torch.distributed.{name}" for name in _OF_DISTRIBUTED if not hasattr(dist, name)),
        *(f"torch.distributed.distributed_c10d.{name}" for name in _OF_C10D if not hasattr(c10d, name)),
    ]


def unknown_requests(module: ModuleType) -> list[str]:
    """Return the reducer's methods that DistributedDataParallel calls and the stand-in neither has nor hands back."""
    called = {
        node.attr
        for node in ast.walk(_source(module))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute) and node.value.attr == "reducer"
    }
    return sorted(called - set(dir(LateReducer)) - set(HANDED_BACK))


def _source(module: ModuleType) -> ast.Module:
    return ast.parse(inspect.getsource(module))
