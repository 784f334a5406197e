"""Functions of torch that call a function of Prophet first.

Rule of this file: how to wrap a function so that warnings and tracebacks still show the program's line, and which calls
reach tensors unseen by any mode of torch: TorchScript, process groups, CUDA graphs, torch.func, nested tensors,
pickling. The callers decide what to call first.
"""

from __future__ import annotations

import functools
import itertools
import sys
import types
from collections.abc import Callable, Iterator
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch import nn

from prophet_scheduler.core._native import call_both, method
from prophet_scheduler.frontends.importlib_bootstrap import passed_over
from prophet_scheduler.frontends.torch import compiled, references

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


_instead: dict[int, tuple[Any, Any]] = {}
"""Functions of torch and their wrappers, by the function's id."""


def call_before(holder: Any, name: str, first: Callable[..., object]) -> None:
    """Make each call of `holder.name`, if it exists, call `first` beforehand with the same arguments."""
    original = getattr(holder, name, None)
    if original is not None:
        both = after(first, original)
        # Only this binds a callable that is no Python function to an object, and keeps it hashable for torch.compile.
        is_method = isinstance(holder, type) and not isinstance(both, types.FunctionType)
        setattr(holder, name, method(both) if is_method else both)
        _instead[id(original)] = original, getattr(holder, name)


def wrap_imported() -> None:
    """Put the wrappers in place of functions that modules of the program have already imported by name."""
    for full_name, module in list(sys.modules.items()):
        if f"{full_name}.".startswith(("torch.", "prophet_")) or not isinstance(module, types.ModuleType):
            continue
        own = vars(module)
        for name, value in list(own.items()):
            original, wrapper = _instead.get(id(value), (None, None))
            if wrapper is not None and original is value:
                own[name] = wrapper


def after(first: Callable[..., object], original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function, not a method, that calls `first`, unless torch.compile traces it, and then `original`."""

    def unless_traced(*args: Any, **kwargs: Any) -> None:
        if not torch.compiler.is_compiling():
            first(*args, **kwargs)

    if not isinstance(original, types.FunctionType):
        # Warnings from C++ show the innermost Python frame, so it must not be one of ours.
        return functools.update_wrapper(functools.partial(call_both, unless_traced, original), original)

    @passed_over
    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        unless_traced(*args, **kwargs)
        return original(*args, **kwargs)

    return wrapper


def patch_parameters(touch: Callable[[torch.Tensor], object]) -> None:
    """Make modules call `touch` with each tensor that they return as an attribute or a parameter.

    Parameters are touched one at a time: `next(model.parameters()).device` must not wait for the whole model.
    """
    original: Callable[[nn.Module, str], Any] = nn.Module.__getattr__
    named = nn.Module.named_parameters

    @passed_over
    @functools.wraps(original)
    def attribute(self: nn.Module, name: str) -> Any:
        value = original(self, name)
        if isinstance(value, torch.Tensor):
            touch(value)
        return value

    @passed_over
    @functools.wraps(named)
    def parameters(self: nn.Module, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Parameter]]:
        for name, param in named(self, *args, **kwargs):
            touch(param)
            yield name, param

    compiled.leave_alone(attribute)
    nn.Module.__getattr__ = attribute  # type: ignore[method-assign]
    nn.Module.named_parameters = parameters  # type: ignore[method-assign]


def patch_zero_grad() -> None:
    """Keep zero_grad() from waiting: it iterates over `parameters()` or an optimizer's groups, but reads no parameter.
    Code of the program's own class before or after that may read, and still waits.
    """
    kinds: tuple[Any, ...] = (nn.Module, torch.optim.Optimizer)
    for kind in kinds:
        kind.zero_grad = _blindly(kind.zero_grad)


def _blindly(original: Callable[..., None]) -> Callable[..., None]:
    @passed_over
    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> None:
        if torch.compiler.is_compiling() or references.program_has_modes() or _walks_itself(type(args[0])):
            return original(*args, **kwargs)
        with references.blind(), references.swapping:
            return original(*args, **kwargs)

    return wrapper


_WALKS = "parameters", "named_parameters", "named_modules", "_named_members"
"""Methods with which a module's zero_grad() finds its parameters."""


def _walks_itself(kind: type) -> bool:
    """Return True for a class with such a method of its own, which may read parameters."""
    return any(getattr(kind, name, None) is not getattr(nn.Module, name) for name in _WALKS if hasattr(kind, name))


def watch_unseen(may_reach_all: Callable[[], None], sends: Callable[[torch.Tensor], None]) -> None:
    """Call `may_reach_all` before each call that may use any tensor, and `sends` before a tensor is pickled for another
    process. Arguments of a process group's methods, and of `nested_tensor`, count like those of torch's functions.
    """
    from torch._functorch import eager_transforms, vmap

    call_before(vars(torch._C)["_nested"], "nested_tensor", _look_at)
    # torch.autograd.Function.apply calls this first: it may save a parameter that it does not read.
    call_before(torch._functorch.utils, "unwrap_dead_wrappers", _look_at)

    if torch.distributed.is_available():
        kinds = torch.distributed.ProcessGroup, torch._C._distributed_c10d.Backend
        for kind, name in itertools.product(kinds, _OF_PROCESS_GROUPS):
            call_before(kind, name, _look_at_arguments)
        call_before(torch.distributed, "_broadcast_coalesced", _look_at_arguments)
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
        call_before(holder, name, lambda *_, **__: may_reach_all())
    # multiprocessing pickles by its own table, in a queue's thread, which no mode watches.
    reducers: dict[type, Callable[[Any], Any]] = ForkingPickler._extra_reducers  # type: ignore[attr-defined]
    for kind, reduce in list(reducers.items()):
        if issubclass(kind, torch.Tensor):
            reducers[kind] = after(sends, reduce)


def _look_at_arguments(_group: object, *args: Any, **kwargs: Any) -> None:
    _look_at(*args, **kwargs)


def _look_at(*args: Any, **kwargs: Any) -> None:
    references.look((*args, *kwargs.values()))
