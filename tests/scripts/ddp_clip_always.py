"""Clipping by norm in every iteration, so that averages are expected to be looked at; then iterations that do less."""

import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 128), nn.ReLU(), nn.Linear(128, 10))
ddp = DistributedDataParallel(model)
params = list(ddp.parameters())
optimizer = torch.optim.AdamW(params, lr=1e-2)

torch.manual_seed(100 + dist.get_rank())
seen, kept = [], []
for iteration in range(24):
    inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
    optimizer.zero_grad(set_to_none=iteration % 2 == 0)
    nn.functional.cross_entropy(ddp(inputs), labels).backward()
    way = iteration % 12
    if way < 6:
        seen.append(nn.utils.clip_grad_norm_(params, 0.3).item())
    else:
        seen.append(params[0].grad.norm().item())  # the last that is generated
    if way == 7:
        for p in params[1:]:
            p.grad.mul_(0.5)
    elif way == 8:
        kept.append([p.grad for p in params])
    elif way == 9:
        params[-1].grad = None
    elif way == 10:
        params[-2].grad = torch.ones_like(params[-2])
    elif way == 11:  # as averages are, on all ranks alike
        for p in params[2:4]:
            p.grad = p.grad.clone()
    optimizer.step()
for grads in kept:
    seen += [grad.double().sum().item() for grad in grads]
report(ddp, state=optimizer.state_dict(), seen=seen)
