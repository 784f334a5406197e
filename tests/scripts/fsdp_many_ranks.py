"""Parameters that do not divide evenly, one with fewer rows than there are ranks, and a mesh of their own."""

import averaging  # noqa: F401
import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
torch.manual_seed(1)
ranks = dist.get_world_size()
model = nn.Sequential(*(fully_shard(nn.Linear(24, 24)) for _ in range(3)), nn.Linear(24, 2), nn.Linear(2, 7))
fully_shard(model[3], mesh=init_device_mesh("cpu", (ranks,)))
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

torch.manual_seed(100 + dist.get_rank())
losses = []
for _ in range(8):
    loss = nn.functional.cross_entropy(model(torch.randn(8, 24)), torch.randint(7, (8,)))
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.3)
    optimizer.step()
    losses.append(loss.item())
report([param.full_tensor() for param in model.parameters()], losses=losses)
dist.destroy_process_group()
