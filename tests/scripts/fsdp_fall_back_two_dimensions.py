"""A mesh of two dimensions: replicas of what is sharded."""

import averaging  # noqa: F401
import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
torch.manual_seed(1)
mesh = init_device_mesh("cpu", (1, dist.get_world_size()), mesh_dim_names=("replicas", "shards"))
model = nn.Sequential(*(fully_shard(nn.Linear(24, 24), mesh=mesh) for _ in range(3)))
fully_shard(model, mesh=mesh)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(100 + dist.get_rank())
for _ in range(3):
    model(torch.randn(8, 24)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
report([param.full_tensor() for param in model.parameters()])
dist.destroy_process_group()
