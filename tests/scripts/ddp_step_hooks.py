"""Hooks around step(), on one optimizer and on all; a profiler that watches."""

import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook

dist.init_process_group("gloo")
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 128), nn.ReLU(), nn.Linear(128, 10))
ddp = DistributedDataParallel(model)
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)

torch.manual_seed(100 + dist.get_rank())
seen = []


def before(optimizer, args, kwargs):
    seen.append(ddp.module[0].weight.grad.sum().item())


def after(optimizer, args, kwargs):
    seen.append(ddp.module[0].weight.sum().item())


for iteration in range(12):
    if iteration == 4:
        handles = [optimizer.register_step_pre_hook(before), optimizer.register_step_post_hook(after)]
    if iteration == 8:
        for handle in handles:
            handle.remove()
        handle = register_optimizer_step_post_hook(after)
    inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
    optimizer.zero_grad()
    nn.functional.cross_entropy(ddp(inputs), labels).backward()
    optimizer.step()
handle.remove()
report(ddp, state=optimizer.state_dict(), seen=seen)
