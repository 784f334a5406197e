"""Sparse gradients of a module: averaged at the end of backward, beside the dense ones.

Rule of this file: their averages, as torch's reducer makes them. An all-reduce of sparse gradients first exchanges
which elements each rank has, so they do not travel in blocks. They use the module's own group, and backward waits for
them, as with torch's reducer. Dense gradients travel meanwhile and later.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist


class SparseGradients:
    """Sparse gradients of these `params`, in an order that is alike on all ranks of the `group`."""

    def __init__(self, params: Sequence[torch.Tensor], group: dist.ProcessGroup) -> None:
        self.params = params
        self._group = group

    def average(self) -> None:
        """Average each gradient over all ranks, in place. All ranks call it once backward has made all gradients."""
        works = []
        for param in self.params:
            if param.grad is None:
                param.grad = torch.zeros_like(param, layout=torch.sparse_coo)
            with torch.no_grad():
                param.grad.div_(self._group.size())
            works.append(dist.all_reduce(param.grad, group=self._group, async_op=True))
        for work in works:
            work.wait()
