"""A penalty of this rank's parts of parameters, whose gradients autograd adds by itself, and a kept average of
parameters.
"""

import averaging  # noqa: F401
import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
torch.manual_seed(1)
layers = [fully_shard(nn.Linear(40, 40)) for _ in range(4)]
model = fully_shard(nn.Sequential(*layers, nn.Linear(40, 7)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
kept = [param.detach().clone() for param in model.parameters()]
torch.manual_seed(100 + dist.get_rank())
for iteration in range(8):
    nn.functional.cross_entropy(model(torch.randn(8, 40)), torch.randint(7, (8,))).backward()
    if iteration % 2:
        sum(param.to_local().square().sum() for param in model.parameters()).mul(1e-2).backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=iteration % 4 < 2)
    with torch.no_grad():
        for average, param in zip(kept, model.parameters(), strict=True):
            average.lerp_(param, 0.1)
report([each.full_tensor() for each in (*model.parameters(), *kept)])
dist.destroy_process_group()
