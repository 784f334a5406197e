"""Ranks that share hosts: a host of three and one of two, with clipping, accumulation and parameters of odd sizes."""

import averaging
import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
averaging.on_hosts("aabab")
torch.manual_seed(1)
model = nn.Sequential(*(nn.Linear(23, 23) for _ in range(4)), nn.Linear(23, 7))
for layer in model[:4]:
    fully_shard(layer)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

torch.manual_seed(100 + dist.get_rank())
losses = []
for iteration in range(8):
    loss = nn.functional.cross_entropy(model(torch.randn(8, 23)), torch.randint(7, (8,)))
    loss.backward()
    losses.append(loss.item())
    if iteration % 4 == 1:
        continue
    if iteration > 5:
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
    optimizer.zero_grad()
report([param.full_tensor() for param in model.parameters()], losses=losses)
dist.destroy_process_group()
