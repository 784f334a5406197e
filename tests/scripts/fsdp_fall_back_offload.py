"""Parameters that are offloaded."""

import averaging  # noqa: F401
import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard

dist.init_process_group("gloo")
torch.manual_seed(1)
policy = CPUOffloadPolicy(pin_memory=False)
model = nn.Sequential(*(fully_shard(nn.Linear(24, 24), offload_policy=policy) for _ in range(3)))
fully_shard(model, offload_policy=policy)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(100 + dist.get_rank())
for _ in range(3):
    model(torch.randn(8, 24)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
report([param.full_tensor() for param in model.parameters()])
dist.destroy_process_group()
