"""Calls that reach tensors unseen by any mode of torch: TorchScript, process groups, CUDA graphs, torch.func, nested
tensors, pickling.

Rule of this file: which calls these are. guards.py decides what to do before them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch

from prophet_scheduler.frontends.torch import between, references

_OF_PROCESS_GROUPS = (
    *("allreduce", "allreduce_coalesced", "reduce", "broadcast", "send", "recv", "recv_anysource", "gather", "scatter"),
    *("alltoall", "alltoall_base", "all_to_all_single", "allgather", "allgather_coalesced", "_allgather_base"),
    *("all_gather_single", "all_gather_single_coalesced", "allgather_into_tensor_coalesced", "reduce_scatter"),
    *("_reduce_scatter_base", "reduce_scatter_single", "reduce_scatter_single_coalesced"),
    "reduce_scatter_tensor_coalesced",
)
"""Methods that take tensors. Modes see the functions of torch.distributed anyway."""
_OF_SCRIPTS = "save", "save_to_buffer", "_save_for_mobile", "_save_to_buffer_for_mobile", "dump", "__deepcopy__"
_ON_SCRIPTS = (
    *("_freeze_module", "_save_jit_module", "_save_jit_module_to_bytes", "_jit_to_static_module"),
    *("_jit_pass_optimize_for_inference", "_jit_pass_optimize_for_mobile", "_nn_module_to_mobile"),
)
"""Methods of a module in TorchScript, and functions of torch._C, that read its parameters."""


def watch(may_reach_all: Callable[[], None], sends: Callable[[torch.Tensor], None]) -> None:
    """Call `may_reach_all` before each call that may use any tensor, and `sends` before a tensor is pickled for another
    process. Arguments of a process group's methods, and of `nested_tensor`, count like those of torch's functions.
    """
    from torch._functorch import eager_transforms, vmap

    between.call_before(vars(torch._C)["_nested"], "nested_tensor", _look_at)

    if torch.distributed.is_available():
        kinds = torch.distributed.ProcessGroup, torch._C._distributed_c10d.Backend
        for kind, name in itertools.product(kinds, _OF_PROCESS_GROUPS):
            between.call_before(kind, name, _look_at_arguments)
        between.call_before(torch.distributed, "_broadcast_coalesced", _look_at_arguments)
    for holder, name in (
        *((script, "__call__") for script in (torch._C.ScriptFunction, torch._C.ScriptMethod)),
        *((torch._C.ScriptModule, name) for name in _OF_SCRIPTS),
        *((torch._C, name) for name in _ON_SCRIPTS),
        # A CUDA graph reads and writes the memory it was captured with.
        *((torch.cuda.CUDAGraph, name) for name in ("capture_begin", "replay")),
        # Nothing may be written within a transform.
        *((eager_transforms, f"_{kind}_increment_nesting") for kind in ("grad", "jvp", "func")),
        (vmap, "_vmap_increment_nesting"),
        # No mode sees a call within it.
        (torch._C, "DisableTorchFunction"),
    ):
        between.call_before(holder, name, lambda *_, **__: may_reach_all())
    # multiprocessing pickles by its own table, in a queue's thread, which no mode watches.
    reducers: dict[type, Callable[[Any], Any]] = ForkingPickler._extra_reducers  # type: ignore[attr-defined]
    for kind, reduce in list(reducers.items()):
        if issubclass(kind, torch.Tensor):
            reducers[kind] = between.after(sends, reduce)


def _look_at_arguments(_group: object, *args: Any, **kwargs: Any) -> None:
    _look_at(*args, **kwargs)


def _look_at(*args: Any, **kwargs: Any) -> None:
    references.look((*args, *kwargs.values()))
