"""Gradients in half precision, and uneven inputs after some steps."""

import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 10))
ddp = DistributedDataParallel(model)
ddp.register_comm_hook(None, fp16_compress_hook)
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)


def train(iterations):
    for _ in range(iterations):
        inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
        optimizer.zero_grad()
        nn.functional.cross_entropy(ddp(inputs), labels).backward()
        optimizer.step()


torch.manual_seed(100 + dist.get_rank())
train(4)
with ddp.join():
    train(3)
train(2)
report(list(ddp.parameters()))
