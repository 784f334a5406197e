"""Batch statistics with and without broadcasts, and a step counter kept in a buffer."""

import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(1)


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(10))

    def forward(self, images):
        outputs = self.body(images)
        self.count += 1
        self.mean = 0.9 * self.mean + 0.1 * outputs.detach().mean(0)
        return outputs - self.mean


models, buffers = [], []
for options in ({}, {"forward_sync_buffers": False}, {"init_sync": True, "gradient_as_bucket_view": True}):
    ddp = DistributedDataParallel(Counting(), **options)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
    torch.manual_seed(100 + dist.get_rank())
    for _ in range(6):
        images, labels = torch.randn(8, 3, 8, 8), torch.randint(10, (8,))
        optimizer.zero_grad()
        nn.functional.cross_entropy(ddp(images), labels).backward()
        optimizer.step()
    models.append(list(ddp.parameters()))
    buffers.append(list(ddp.buffers()))
report(models, buffers=buffers)
