"""Hooks of the user's own on gradients, made before and after the module is wrapped."""

import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 128), nn.ReLU(), nn.Linear(128, 10))
seen = []


def small(p):
    p.grad.clamp_(-0.01, 0.01)


def twice(p):
    p.grad.mul_(2)


model[0].weight.register_hook(lambda grad: grad * 0.5)
model[2].weight.register_post_accumulate_grad_hook(small)
ddp = DistributedDataParallel(model)
model[2].bias.register_hook(lambda grad: grad.clamp(-0.02, 0.02))
model[0].bias.register_post_accumulate_grad_hook(twice)
model[4].weight.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.sum().item()))
model[4].bias.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", torch.sign(p.grad)))
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)

torch.manual_seed(100 + dist.get_rank())
for _ in range(8):
    inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
    optimizer.zero_grad()
    nn.functional.cross_entropy(ddp(inputs), labels).backward()
    optimizer.step()
report(ddp, state=optimizer.state_dict(), seen=seen)
