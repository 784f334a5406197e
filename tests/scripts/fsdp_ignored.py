"""Parameters that FSDP2 leaves alone and the script averages itself."""

import averaging  # noqa: F401
import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
torch.manual_seed(1)
model = nn.Sequential(*(nn.Linear(40, 40) for _ in range(4)), nn.Linear(40, 7))
own = [model[1].bias, model[4].bias]
for layer in model[:4]:
    fully_shard(layer, ignored_params=set(own))
fully_shard(model, ignored_params=set(own))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
torch.manual_seed(100 + dist.get_rank())
losses = []
for _ in range(8):
    loss = nn.functional.cross_entropy(model(torch.randn(8, 40)), torch.randint(7, (8,)))
    loss.backward()
    for param in own:
        dist.all_reduce(param.grad)
        param.grad /= dist.get_world_size()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
weights = [param.full_tensor() if hasattr(param, "full_tensor") else param for param in model.parameters()]
report(weights, losses=losses)
dist.destroy_process_group()
