"""Tests as torch's sources have them for FSDP2, for a GPU a rank: in processes, and in threads of one."""
# mypy: disable-error-code="attr-defined,untyped-decorator,union-attr"

from __future__ import annotations

import unittest

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import init_device_mesh
from torch.distributed.tensor.debug import CommDebugMode
from torch.testing._internal.common_cuda import TEST_CUDA
from torch.testing._internal.common_distributed import skip_if_lt_x_gpu
from torch.testing._internal.common_fsdp import FSDPTest, FSDPTestMultiThread


class InProcesses(FSDPTest):
    @property
    def world_size(self) -> int:
        return min(2, torch.cuda.device_count())

    @skip_if_lt_x_gpu(2)
    def test_average(self) -> None:
        model = nn.Linear(2, 2, bias=False).cuda()
        fully_shard(model, mesh=init_device_mesh("cuda", (self.world_size,)))
        model(torch.full((1, 2), self.rank + 1.0, device="cuda")).sum().backward()
        self.assertEqual(model.weight.grad.full_tensor(), torch.full((2, 2), 1.5))

    @skip_if_lt_x_gpu(2)
    def test_counts_collectives(self) -> None:
        model = nn.Linear(2, 2).cuda()
        fully_shard(model)
        with CommDebugMode() as counts:
            model(torch.ones(1, 2, device="cuda"))
        self.assertEqual(counts.get_total_counts(), 1)


class InThreads(FSDPTestMultiThread):
    @property
    def world_size(self) -> int:
        return 2

    @unittest.skipIf(not TEST_CUDA, "no cuda")
    def test_steps(self) -> None:
        model = nn.Linear(2, 2)
        whole = nn.parallel.DistributedDataParallel(nn.Linear(2, 2))
        fully_shard(model)
        for module in (model, whole):
            optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
            module(torch.ones(1, 2)).sum().backward()
            optimizer.step()
        self.assertEqual(dist.get_world_size(), 2)

    @unittest.skip("for a reason")
    def test_skipped(self) -> None:
        raise AssertionError
