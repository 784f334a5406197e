"""Memory of a parameter that is read without calling torch: by another process, NumPy or another library.

Rule of this file: what references.py cannot see, because no function of torch is called when it is read. Here it
is noticed that somebody holds the memory; the parameter's update must then be in place when step() returns.

Other processes share a tensor's memory once multiprocessing has sent it or `share_memory_()` was called. NumPy and
other libraries get the memory of CPU tensors only, by `numpy()` or `__dlpack__()`, which are watched here. Whether they
still have it, the storage's count of references says: torch counts one for the tensor and one for the object that asks.
Nothing was watched before the first optimizer was wrapped, so a storage with more holders then counts as lent.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch

_count_of: Callable[[int], int] | None = getattr(torch._C, "_storage_Use_Count", None)
_ALONE = 2
"""A storage's count of references where nobody else holds it: its tensor, and the storage object that asks."""


class Memory:
    """What is known about the memory of one parameter."""

    def __init__(self) -> None:
        self.sent = False  # to another process
        self.lent = False  # to NumPy or the like, which may have given it back
        self._key = 0

    def note(self, param: torch.Tensor) -> None:
        """Remembers where the parameter is now, and whether somebody else holds its memory already."""
        if param.is_cpu:
            storage = param.untyped_storage()
            self._follow(storage._cdata)
            self.lent |= _held_by_others(storage._cdata)

    def exposed(self, storage: torch.UntypedStorage, is_cpu: bool) -> bool:
        """Whether somebody may read the parameter, whose storage this is, without being noticed."""
        if not is_cpu:
            return self.sent
        key = storage._cdata
        if key != self._key:
            self._follow(key)
        return self.sent or (self.lent and _held_by_others(key)) or storage.is_shared()

    def _follow(self, key: int) -> None:
        self._key = key
        _memories[key] = self


def _held_by_others(key: int) -> bool:
    """Whether anything but its tensor holds the storage. The caller must hold a storage object of it."""
    return _count_of is not None and _count_of(key) > _ALONE


_memories: weakref.WeakValueDictionary[int, Memory] = weakref.WeakValueDictionary()
"""By the key of the storage, of parameters on the CPU."""


def install() -> None:
    """Notices from now on when memory is lent. Without any parameter the patches only look into an empty table."""
    for name in ("numpy", "__dlpack__"):
        setattr(torch.Tensor, name, _lending(getattr(torch.Tensor, name)))


def _lending(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def wrapper(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_compiling() and self.is_cpu:
            memory = _memories.get(_key_of(self))
            if memory is not None:
                memory.lent = True
        return original(self, *args, **kwargs)

    return wrapper


def _key_of(tensor: torch.Tensor) -> int:
    try:
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):
        return 0
