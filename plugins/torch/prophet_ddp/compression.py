"""torch's own communication hooks that Prophet applies: by the element, or by torch's buckets.

Rule of this file: which hooks these are, and how each is applied. The result is torch's, bit for bit. By the element,
as torch's default_hooks compute it, gradients are rounded to the small type, if there is one, divided by the number of
ranks there, summed, and put back. All others are called with torch's buckets (buckets.py).
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
    """Hook of torch. `half`: type that gradients are rounded to before they are divided; None for their own type.
    `by_bucket`: its result depends on torch's buckets.
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
"""Modules of torch whose hooks say by their future alone when they have ended. quantization_hooks fail over gloo, with
or without Prophet: they read the lists of lists that NCCL returns."""


def known(hook: Any) -> CommHook | None:
    """Return how Prophet applies this hook; None if it does not."""
    plain = next((known for known in KNOWN.values() if known.function is hook), None)
    if plain is not None or getattr(hook, "__module__", None) not in _MODULES:
        return plain
    wrapped = [known(cell.cell_contents) for cell in getattr(hook, "__closure__", None) or ()]
    if None in wrapped:
        return None
    half = _WRAPPED.get(hook.__qualname__.partition(".")[0])
    if half is not None and wrapped == [KNOWN[default_hooks.allreduce_hook]]:
        return CommHook(hook, half)  # By the element, too.
    return CommHook(hook, by_bucket=True)


def group_of(state: Any) -> Any:
    """Return the process group that a known hook with this state averages in; None for that of all ranks."""
    group = getattr(state, "process_group", state)
    return group if isinstance(group, dist.ProcessGroup) else dist.group.WORLD
