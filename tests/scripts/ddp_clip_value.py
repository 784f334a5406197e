"""Clipping by value, alone, beside other ways to clip, and before gradients are looked at."""

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
optimizer = torch.optim.AdamW(params, lr=1e-2)

torch.manual_seed(100 + dist.get_rank())
seen = []
for iteration in range(48):
    inputs, labels = torch.randn(16, 16), torch.randint(10, (16,))
    optimizer.zero_grad(set_to_none=iteration % 3 > 0)
    loss = nn.functional.cross_entropy(ddp(inputs), labels)
    way = iteration % 12
    if way == 11:
        loss = loss * (float("inf") if iteration == 11 else 1e30)
    loss.backward()
    nn.utils.clip_grad_value_(ddp.parameters(), 0.01)
    if way == 5:
        seen.append(clip_grad_norm_(params, 0.02))
    elif way == 6:
        nn.utils.clip_grad_value_(params, 0.005)
    elif way == 7:
        seen += [p.grad.abs().max() for p in params]
    elif way == 8:
        nn.utils.clip_grad_value_(params[0], 0.005, foreach=False)
    elif way == 9:
        params[0].grad *= 0.5
    elif way == 10:
        optimizer.zero_grad()
    elif way == 11:
        seen += [p.grad.isnan().sum() for p in params]
        for p in params:
            p.grad = torch.zeros_like(p)
    optimizer.step()
report(ddp, state=optimizer.state_dict(), seen=[value.item() for value in seen])
