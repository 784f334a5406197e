"""torch's own communication hooks that Prophet applies: element by element, or bucket by bucket.

Rule of this file: which hooks these are, and how each is applied. The result is torch's, bit for bit. Element by
element means, as in torch's default_hooks: round gradients to the smaller type, if there is one, divide them in that
type by the number of ranks, sum, and convert back. All other hooks are called with torch's buckets (buckets.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks


@dataclass(frozen=True)
class CommHook:
    """Hook of torch. `half`: type to which gradients are rounded before the division; None for their own type.
    `by_bucket`: the result depends on torch's buckets.
    """

    function: Any
    half: torch.dtype | None = None
    by_bucket: bool = False


KNOWN: Mapping[Any, CommHook] = {
    hook.function: hook
    for hook in (
        CommHook(default_hooks.allreduce_hook),
        CommHook(default_hooks.fp16_compress_hook, torch.float16),
        CommHook(default_hooks.bf16_compress_hook, torch.bfloat16),
    )
}
_WRAPPED: Mapping[str, torch.dtype] = {
    default_hooks.fp16_compress_wrapper.__name__: torch.float16,
    default_hooks.bf16_compress_wrapper.__name__: torch.bfloat16,
}
_MODULES = frozenset(
    f"torch.distributed.algorithms.ddp_comm_hooks.{name}"
    for name in ("debugging_hooks", "default_hooks", "post_localSGD_hook", "powerSGD_hook")
)
"""Modules of torch whose hooks are done when their future is. quantization_hooks fail over gloo, with or without
Prophet: they expect the lists of lists that NCCL returns."""


def known(hook: Any) -> CommHook | None:
    """Return how Prophet applies this hook; None if it cannot."""
    plain = next((known for known in KNOWN.values() if known.function is hook), None)
    if plain is not None or getattr(hook, "__module__", None) not in _MODULES:
        return plain
    wrapped = [known(cell.cell_contents) for cell in getattr(hook, "__closure__", None) or ()]
    if None in wrapped:
        return None
    half = _WRAPPED.get(hook.__qualname__.partition(".")[0])
    if half is not None and wrapped == [KNOWN[default_hooks.allreduce_hook]]:
        return CommHook(hook, half)  # Element by element, too.
    return CommHook(hook, by_bucket=True)


def group_of(state: Any) -> Any:
    """Return the process group in which a known hook with this state averages; the default group if none is named."""
    group = getattr(state, "process_group", state)
    return group if isinstance(group, dist.ProcessGroup) else dist.group.WORLD
