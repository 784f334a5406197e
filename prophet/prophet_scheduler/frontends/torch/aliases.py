"""Memory of a parameter or gradient that is accessed without calling torch: by another process, NumPy, or another
library.

Rule of this file: uses invisible to references.py because they call no function of torch. This file detects that
something else holds the memory. Then the parameter's update must be done when step() returns, and the average must be
in `.grad` when backward returns, if the engine averages there.

A program may also keep a storage object and access it without torch's functions; Python's reference count shows this.

Other processes share a tensor's memory once multiprocessing has sent it or `share_memory_()` was called. NumPy and
other libraries only get the memory of CPU tensors, through `numpy()`, `__dlpack__()` or `to_dlpack`, which this file
watches. No mode of torch sees `to_dlpack`, so the patch here counts it as a use. The storage's reference count shows
whether others still have the memory: torch counts one for the tensor and one for the object that asks. Nothing is
watched before the first optimizer is wrapped, so a storage with more holders at that time counts as lent.

Memory that torch may not resize belongs to an array or buffer from which the tensor was made, and may be accessed
directly. So may memory that NumPy got before the first optimizer was wrapped, as far as this file knows.

Gradients come and go. If the program clears a lent gradient in place, it counts as lent as long as it exists: a NumPy
array keeps the tensor itself, and no other reference to its storage.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.utils.dlpack
from torch.multiprocessing.reductions import StorageWeakRef

from prophet_scheduler.frontends.torch import references
from prophet_scheduler.frontends.torch.between import call_before

_count_of: Callable[[int], int] | None = getattr(torch._C, "_storage_Use_Count", None)
_ALONE = 2
"""Reference count of a storage that nothing else holds: the tensor, and the storage object that asks."""


class Memory:
    """Record of other holders of one parameter's memory."""

    def __init__(self) -> None:
        self.sent = False  # to another process
        self.lent = False  # to NumPy or the like before it was watched, which may have released it since
        self.foreign = False  # of an array or a buffer, which may have been used directly since
        self._key = 0

    def note(self, param: torch.Tensor) -> None:
        """Remember where the parameter is now. Mark it as lent if something else already holds its memory."""
        if param.is_cpu:
            storage = param.untyped_storage()
            self._follow(storage)
            self.lent |= _held_by_others(storage._cdata)

    def exposed(self, storage: torch.UntypedStorage, is_cpu: bool) -> bool:
        """Return True if something may read the parameter, which has this storage, without being noticed."""
        if not is_cpu:
            return self.sent
        key = storage._cdata
        if key != self._key:
            self._follow(storage)
        lent = (self.lent or key in _lent) and _held_by_others(key)
        return self.sent or lent or self.foreign or storage.is_shared()

    def _follow(self, storage: torch.UntypedStorage) -> None:
        self._key = storage._cdata
        self.foreign = not storage.resizable()


def _held_by_others(key: int) -> bool:
    """Return True if anything but its tensor holds the storage. The caller must hold one storage object for it."""
    return _count_of is not None and _count_of(key) > _ALONE


def is_held(tensor: torch.Tensor, tensors: int = 1) -> bool:
    """Return True if anything but `tensors` tensors may hold the tensor's memory."""
    storage = tensor.untyped_storage()
    return _count_of is None or _count_of(storage._cdata) > _ALONE - 1 + tensors


def is_kept(storage: torch.UntypedStorage) -> bool:
    """Return True if anything but one variable of the caller holds this storage object."""
    return sys.getrefcount(storage) > _IN_ONE_VARIABLE


def _in_one_variable() -> int:
    def count(storage: torch.UntypedStorage) -> int:
        return sys.getrefcount(storage)

    tensor = torch.empty(0, device="cpu")  # Depending on torch's version, it may keep the object, too.
    storage = tensor.untyped_storage()
    return count(storage)


_IN_ONE_VARIABLE = _in_one_variable()


def holders(place: Mapping[Any, Any], key: Any) -> int:
    """Return the number of references to `place[key]`, not counting that of `place`."""
    return sys.getrefcount(place[key]) - _ONLY_THERE


_ONLY_THERE = 0
_ONLY_THERE = holders({0: object()}, 0)


_lent: dict[int, StorageWeakRef] = {}
"""Lent storages on the CPU, by key: several parameters may lie in one. As long as this reference is held, no other
storage gets the key."""
_MOST_LENT = 1000
"""Number of entries that triggers a search for dead ones: a program may lend each of its batches to NumPy."""
_most_lent = _MOST_LENT


def is_unseen(storage: torch.UntypedStorage) -> bool:
    """Return True if something may use this living storage, which belongs to no parameter, without being noticed. The
    caller holds it in one variable.
    """
    held = sys.getrefcount(storage) > _IN_ONE_VARIABLE or storage._cdata in _lent or not storage.resizable()
    return held or (storage.device.type == "cpu" and storage.is_shared())


def _note_lent(key: int, storage: torch.UntypedStorage) -> None:
    global _most_lent
    if key in _lent:
        return
    if len(_lent) >= _most_lent:
        # Other threads may lend at the same time. Even making a list of the items may run the garbage collector.
        for other, reference in _lent.copy().items():
            if reference.expired() and _lent.get(other) is reference:
                _lent.pop(other, None)
        _most_lent = max(_MOST_LENT, 2 * len(_lent))
    _lent[key] = StorageWeakRef(storage)  # type: ignore[no-untyped-call]


def install() -> None:
    """Notice lent memory from now on. Without watched parameters the patches only look into an empty table."""
    for name in ("numpy", "__dlpack__"):
        call_before(torch.Tensor, name, _before_lending)
    exporting = ("to_dlpack", torch), ("to_dlpack", torch.utils.dlpack), ("_to_dlpack", torch._C)
    for name, module in (*exporting, ("_to_dlpack_versioned", torch._C)):
        call_before(module, name, _before_exporting)


def _before_lending(tensor: torch.Tensor, *_: Any, **__: Any) -> None:
    if tensor.is_cpu:
        _note(tensor)


def _before_exporting(tensor: torch.Tensor, *_: Any, **__: Any) -> None:
    references.look((tensor,))
    _before_lending(tensor)


def _note(tensor: torch.Tensor) -> None:
    try:
        storage = tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):
        return
    _note_lent(storage._cdata, storage)
