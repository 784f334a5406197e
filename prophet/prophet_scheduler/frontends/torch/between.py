"""Functions of torch that call a function of Prophet first.

Rule of this file: how to wrap a function so that warnings and tracebacks still show the program's line. The callers
decide what to call first.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from prophet_scheduler.core._native import call_both, method
from prophet_scheduler.frontends.importlib_bootstrap import passed_over
from prophet_scheduler.frontends.torch import compiled, references


def call_before(holder: Any, name: str, first: Callable[..., object]) -> None:
    """Make each call of `holder.name`, if it exists, call `first` beforehand with the same arguments."""
    original = getattr(holder, name, None)
    if original is not None:
        both = after(first, original)
        # Only this binds a callable that is no Python function to an object, and keeps it hashable for torch.compile.
        is_method = isinstance(holder, type) and not isinstance(both, types.FunctionType)
        setattr(holder, name, method(both) if is_method else both)


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
        if torch.compiler.is_compiling():
            return original(*args, **kwargs)
        with references.blind(), references.swapping:
            return original(*args, **kwargs)

    return wrapper
