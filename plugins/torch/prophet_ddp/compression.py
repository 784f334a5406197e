"""torch's own communication hooks that Prophet applies itself, by the element.

Rule of this file: the result of such a hook, bit for bit as torch's default_hooks compute it on a bucket. Elements are
rounded to the small type, if there is one, divided by the number of ranks there, summed, and put back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks


@dataclass(frozen=True)
class CommHook:
    """Hook of torch. `half`: type that gradients are rounded to before they are divided; None for their own type."""

    function: Any
    half: torch.dtype | None = None


KNOWN: Mapping[Any, CommHook] = {
    hook.function: hook
    for hook in (
        CommHook(default_hooks.allreduce_hook),
        CommHook(default_hooks.fp16_compress_hook, torch.float16),
        CommHook(default_hooks.bf16_compress_hook, torch.bfloat16),
    )
}
