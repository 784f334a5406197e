"""Clipping by norms of several orders, each for some iterations, with two optimizers for one model."""

import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_

dist.init_process_group("gloo")
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(16, 48), nn.ReLU(), nn.Linear(48, 32), nn.ReLU(), nn.Linear(32, 10))
ddp = DistributedDataParallel(model)
params = list(ddp.parameters())
halves = params[:3], params[3:]
optimizers = torch.optim.AdamW(halves[0], lr=1e-2), torch.optim.SGD(halves[1], lr=1e-2, momentum=0.9)

torch.manual_seed(100 + dist.get_rank())
seen = []
for iteration in range(50):
    inputs, labels = torch.randn(16, 16), torch.randint(10, (16,))
    order = (float("inf"), 1.0, 2.0, 3.0, 2)[iteration // 5 % 5]
    for optimizer in optimizers:
        optimizer.zero_grad()
    nn.functional.cross_entropy(ddp(inputs), labels).backward()
    if iteration % 2:
        seen.append(clip_grad_norm_(params, 0.05, norm_type=order))
    for half, optimizer in zip(halves, optimizers, strict=True):
        if not iteration % 2:
            seen.append(clip_grad_norm_(half, 0.05, norm_type=order))
        optimizer.step()
report(ddp, states=[optimizer.state_dict() for optimizer in optimizers], seen=[value.item() for value in seen])
