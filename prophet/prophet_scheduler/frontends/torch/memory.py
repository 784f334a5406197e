"""The memory of tensors: their storages, the tensors that they are made of, and overlaps.

Rule of this file: it reads addresses and sizes, and no values.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Hashable, Iterable
from typing import TypeVar

import torch

StorageKey = int
_Key = TypeVar("_Key", bound=Hashable)
PLAIN = frozenset((torch.Tensor, torch.nn.Parameter))
"""Classes of tensors that are not made of others."""
_COMPRESSED = torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc


def storage_of(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    """Return the tensor's storage; None if it has none of its own."""
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError, AttributeError):
        return None


def storage_key(tensor: torch.Tensor) -> StorageKey:
    """Return a key that is equal for all tensors that share memory; 0 if the tensor has no storage of its own."""
    storage = storage_of(tensor)
    return int(storage._cdata) if storage is not None else 0


@functools.cache
def is_of_others(kind: type[torch.Tensor]) -> bool:
    """Return True for a class of tensors that are made of others, as a DTensor is of this rank's part."""
    return hasattr(kind, "__tensor_flatten__")


def parts_of(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return the tensor and, if it is made of others, these, which have storages of their own. The last one of a
    DTensor of plain tensors is this rank's part.
    """
    kind = type(tensor)
    if kind in PLAIN or not is_of_others(kind):
        return [tensor]
    names, _ = tensor.__tensor_flatten__()  # type: ignore[attr-defined]
    others = (other for name in names if isinstance(other := getattr(tensor, name), torch.Tensor))
    return [tensor, *itertools.chain.from_iterable(map(parts_of, others))]


def memory_of(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return the tensor, or the values of a sparse one."""
    if tensor.layout is torch.strided:
        return (tensor,)
    if tensor.layout is torch.sparse_coo:
        return (tensor._values(),)
    return (tensor.values(),) if tensor.layout in _COMPRESSED else ()


def overlapping(tensors: Iterable[tuple[_Key, torch.Tensor | None]]) -> set[_Key]:
    """Return the keys of tensors that share elements with another one's. A tensor made of others counts by its last
    part.
    """
    spans = []
    for key, tensor in tensors:
        part = parts_of(tensor)[-1] if tensor is not None else None
        if part is not None and part.numel():
            extent = sum((size - 1) * stride for size, stride in zip(part.size(), part.stride(), strict=True)) + 1
            spans.append((part.data_ptr(), part.data_ptr() + extent * part.element_size(), key))
    found: set[_Key] = set()
    furthest, owner = 0, None
    for start, end, key in sorted(spans, key=lambda span: span[:2]):
        if start < furthest and owner is not None:
            found |= {key, owner}
        if end > furthest:
            furthest, owner = end, key
    return found
