"""Buffers sent by a hook of the user's own, after forward."""

import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(32, 96), nn.BatchNorm1d(96), nn.ReLU(), nn.Linear(96, 10))
ddp = DistributedDataParallel(model)
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)


def average(state, buffers):
    means = [buffer for name, buffer in buffers.items() if name.endswith("running_mean")]
    return [dist.all_reduce(mean, async_op=True).get_future() for mean in means]


torch.manual_seed(100 + dist.get_rank())
for iteration in range(6):
    if iteration == 3:
        ddp._register_buffer_comm_hook(None, average)
    inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
    optimizer.zero_grad()
    nn.functional.cross_entropy(ddp(inputs), labels).backward()
    optimizer.step()
report(list(ddp.parameters()), buffers=list(ddp.buffers()))
