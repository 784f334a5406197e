"""Memory of a parameter or gradient read without a call of torch: by another process, NumPy or another library.

Rule of this file: uses that references.py cannot see, because they call no function of torch. It notices that somebody
holds the memory. Then the parameter's update must be made when step() returns, and so must the average in its `.grad`
when backward returns, if the engine averages there.

A program may also keep a storage object, which is written and read past torch's functions: Python's count of
references tells.

Other processes share a tensor's memory once multiprocessing has sent it or `share_memory_()` was called. NumPy and
other libraries get the memory of CPU tensors only, by `numpy()`, `__dlpack__()` or `to_dlpack`, which this file
watches. No mode of torch sees the last one, so the patch here counts it as a use. The storage's count of references
tells if others still have the memory: torch counts one for the tensor and one for the object that asks. Nothing was
watched before the first optimizer was wrapped, so a storage with more holders then counts as lent.

Memory that torch may not resize is of an array or a buffer of which a tensor was made, and may be used directly. So is
the memory that NumPy had before the first optimizer was wrapped, as far as this file knows.

A gradient comes and goes. Where the program clears it in place, a lent one counts as lent as long as it is there: an
array of NumPy keeps the tensor itself, and no other reference to its storage.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.utils.dlpack
from torch.multiprocessing.reductions import StorageWeakRef

from prophet_scheduler.frontends.torch import references
from prophet_scheduler.frontends.torch.between import call_before

_count_of: Callable[[int], int] | None = getattr(torch._C, "_storage_Use_Count", None)
_ALONE = 2
"""References to a storage that nobody else holds: its tensor, and the storage object that asks."""


class Memory:
    """Record of who holds the memory of one parameter."""

    def __init__(self) -> None:
        self.sent = False  # to another process
        self.lent = False  # to NumPy or the like, which may have given it back
        self.foreign = False  # of an array or a buffer, which may have been used directly since
        self._key = 0

    def note(self, param: torch.Tensor) -> None:
        """Remember where the parameter is now. Note it as lent if somebody else holds its memory already."""
        if param.is_cpu:
            storage = param.untyped_storage()
            self._follow(storage)
            self.lent |= _held_by_others(storage._cdata)

    def exposed(self, storage: torch.UntypedStorage, is_cpu: bool) -> bool:
        """True if somebody may read the parameter, whose storage this is, without being noticed."""
        if not is_cpu:
            return self.sent
        key = storage._cdata
        if key != self._key:
            self._follow(storage)
        return self.sent or (self.lent and _held_by_others(key)) or self.foreign or storage.is_shared()

    def _follow(self, storage: torch.UntypedStorage) -> None:
        self._key = storage._cdata
        self.foreign = not storage.resizable()
        _memories[self._key] = self


def _held_by_others(key: int) -> bool:
    """True if anything but its tensor holds the storage. The caller must hold a storage object of it."""
    return _count_of is not None and _count_of(key) > _ALONE


def is_held(tensor: torch.Tensor, tensors: int = 1) -> bool:
    """True if anything may hold the tensor's memory besides `tensors` tensors."""
    storage = tensor.untyped_storage()
    return _count_of is None or _count_of(storage._cdata) > _ALONE - 1 + tensors


def is_kept(storage: torch.UntypedStorage) -> bool:
    """True if anybody has this storage object besides one variable of the caller's."""
    return sys.getrefcount(storage) > _IN_ONE_VARIABLE


def _in_one_variable() -> int:
    def count(storage: torch.UntypedStorage) -> int:
        return sys.getrefcount(storage)

    tensor = torch.empty(0, device="cpu")  # It may keep the object too, by torch's release.
    storage = tensor.untyped_storage()
    return count(storage)


_IN_ONE_VARIABLE = _in_one_variable()


def holders(place: Mapping[Any, Any], key: Any) -> int:
    """Return the number of references to a value beside the one that `place` has."""
    return sys.getrefcount(place[key]) - _ONLY_THERE


_ONLY_THERE = 0
_ONLY_THERE = holders({0: object()}, 0)


_memories: weakref.WeakValueDictionary[int, Memory] = weakref.WeakValueDictionary()
"""Memory of parameters on the CPU, by the key of the storage."""
_lent: dict[int, StorageWeakRef] = {}
"""Other lent storages on the CPU, by key. No other storage gets the key as long as this reference is held."""
_MOST_LENT = 1000
"""Entries before a search for dead ones: a program that gives each batch to NumPy lends as many."""
_most_lent = _MOST_LENT


def is_unseen(storage: torch.UntypedStorage) -> bool:
    """True if somebody may use this living storage, which is no parameter's, without being noticed. The caller has it
    in one variable.
    """
    return sys.getrefcount(storage) > _IN_ONE_VARIABLE or storage._cdata in _lent or not storage.resizable()


def _note_lent(key: int, storage: torch.UntypedStorage) -> None:
    global _most_lent
    if key in _lent:
        return
    if len(_lent) >= _most_lent:
        # Other threads lend as well, also while a list of its items is made, which may collect garbage.
        for other, reference in _lent.copy().items():
            if reference.expired() and _lent.get(other) is reference:
                _lent.pop(other, None)
        _most_lent = max(_MOST_LENT, 2 * len(_lent))
    _lent[key] = StorageWeakRef(storage)  # type: ignore[no-untyped-call]


def install() -> None:
    """Notice from now on when memory is lent. Without any parameter the patches only look into an empty table."""
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
    memory = _memories.get(storage._cdata)
    if memory is not None:
        memory.lent = True
    else:
        _note_lent(storage._cdata, storage)
