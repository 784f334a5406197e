"""Three replicas of layers that are sharded, or replicated, without a root around them: each is a model of its own."""

import averaging  # noqa: F401
import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
torch.manual_seed(1)
mesh = init_device_mesh("cpu", (dist.get_world_size(), 1), mesh_dim_names=("replicas", "shards"))
model = nn.Sequential(*(fully_shard(nn.Linear(40, 40), mesh=mesh) for _ in range(12)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
torch.manual_seed(100 + dist.get_rank())
losses = []
for _ in range(6):
    loss = nn.functional.cross_entropy(model(torch.randn(8, 40)), torch.randint(40, (8,)))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
report([param.full_tensor() for param in model.parameters()], losses=losses)
dist.destroy_process_group()
