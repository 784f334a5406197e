"""Where a program can reach a parameter: each way finishes the parameter's pending update first.

Rule of this file: interception of torch.nn, and nothing about transfers or optimizers. A parameter with
a pending update is brought up to date when its module is called, when it is read as an attribute of a
module, when it comes out of `named_parameters()` or `parameters()`, when it is copied or pickled; and all
of them before `state_dict()`, `load_state_dict()` and moves like `model.to()`.

Two ways are out of reach: a reference that the program kept to the tensor itself, and code that
torch.compile made. Where gradients show the first, and from the start of the first compilation, step()
waits, as stock BytePS does. The patches do nothing while they are traced, so they break no graph.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from prophet.plugins.byteps.torch_buckets import Bucket, Slot
from torch import nn

_slots: weakref.WeakValueDictionary[int, Slot] = weakref.WeakValueDictionary()
"""By id of the parameter, which the slot keeps alive: no id is reused."""
_owners: weakref.WeakSet[Any] = weakref.WeakSet()
_kept: set[Any] = set()
_installed = False
_clearing = False


def watch(owner: Any, slots: list[Slot]) -> None:
    """From now on brings these parameters up to date, through `owner.finish(buckets)` and `owner.flush()`."""
    _install()
    _owners.add(owner)
    for slot in slots:
        _slots[id(slot.param)] = slot


def keep(owner: Any) -> None:
    """Keeps `owner` until `release`: the program may drop an optimizer whose updates are still to come."""
    _kept.add(owner)


def release(owner: Any) -> None:
    _kept.discard(owner)


def owners() -> list[Any]:
    """The `owner` of each `watch` that still lives."""
    return list(_owners)


def _flush_all() -> None:
    for owner in owners():
        owner.flush()


def _touch(value: Any) -> None:
    """Marks `value`, if it is a watched parameter, as reached, and finishes its update."""
    if torch.compiler.is_compiling():
        return
    slot = _slots.get(id(value))
    if slot is not None:
        slot.touched = True
        if slot.bucket is not None and slot.bucket.pending:
            slot.owner.finish([slot.bucket])


def _before_forward(module: nn.Module) -> None:
    """Finishes the updates of a module's own parameters together: one call of the optimizer, not one each."""
    if torch.compiler.is_compiling() or not module._parameters:
        return
    pending: dict[Any, dict[Bucket, None]] = {}
    for param in module._parameters.values():
        slot = _slots.get(id(param))
        if slot is not None:
            slot.touched = True
            if slot.bucket is not None and slot.bucket.pending:
                pending.setdefault(slot.owner, {})[slot.bucket] = None
    for owner, buckets in pending.items():
        owner.finish(list(buckets))


def _before_compilation(*_args: Any) -> None:
    for owner in owners():
        owner.keep_barrier()


def _install() -> None:
    """Patches torch.nn once; without any watched parameter the patches only look into an empty table."""
    global _installed
    if _installed:
        return
    _installed = True
    from torch._dynamo.callback import on_compile_start  # Slow to import: not before an optimizer is wrapped.

    on_compile_start(_before_compilation)
    _patch_call()
    for name in ("state_dict", "load_state_dict", "_apply"):
        _flush_before(nn.Module, name)
    for name in ("__deepcopy__", "__reduce_ex__"):
        _touch_before(nn.Parameter, name)
    _patch_getattr()
    _patch_named_parameters()
    _patch_zero_grad()


def _flush_before(cls: type, name: str) -> None:
    original = getattr(cls, name)

    @functools.wraps(original)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        _flush_all()
        return original(self, *args, **kwargs)

    setattr(cls, name, wrapper)


def _touch_before(cls: type, name: str) -> None:
    original = getattr(cls, name)

    @functools.wraps(original)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        _touch(self)
        return original(self, *args, **kwargs)

    setattr(cls, name, wrapper)


def _patch_call() -> None:
    original: Callable[..., Any] = nn.Module.__call__

    @functools.wraps(original)
    def wrapper(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        _before_forward(self)
        return original(self, *args, **kwargs)

    nn.Module.__call__ = wrapper  # type: ignore[method-assign]


def _patch_getattr() -> None:
    original: Callable[[nn.Module, str], Any] = nn.Module.__getattr__

    @functools.wraps(original)
    def wrapper(self: nn.Module, name: str) -> Any:
        value = original(self, name)
        if isinstance(value, torch.Tensor):
            _touch(value)
        return value

    nn.Module.__getattr__ = wrapper  # type: ignore[method-assign]


def _patch_named_parameters() -> None:
    """Parameter by parameter: `next(model.parameters()).device` must not wait for the whole model."""
    original = nn.Module.named_parameters

    @functools.wraps(original)
    def wrapper(self: nn.Module, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Parameter]]:
        for name, param in original(self, *args, **kwargs):
            if not _clearing:
                _touch(param)
            yield name, param

    nn.Module.named_parameters = wrapper  # type: ignore[method-assign]


def _patch_zero_grad() -> None:
    """Clearing gradients goes through `parameters()` but reads no parameter: it must not wait."""
    original = nn.Module.zero_grad

    @functools.wraps(original)
    def wrapper(self: nn.Module, *args: Any, **kwargs: Any) -> None:
        global _clearing
        _clearing = True
        try:
            original(self, *args, **kwargs)
        finally:
            _clearing = False

    nn.Module.zero_grad = wrapper  # type: ignore[method-assign]
