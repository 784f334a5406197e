"""Parameters resharded to pairs of ranks after forward, which are gathered within a pair in backward."""

import averaging  # noqa: F401
import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
torch.manual_seed(1)
model = nn.Sequential(*(nn.Linear(24, 24) for _ in range(4)), nn.Linear(24, 7))
for layer in model[:4]:
    fully_shard(layer, reshard_after_forward=2)
fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

torch.manual_seed(100 + dist.get_rank())
losses = []
for _ in range(6):
    loss = nn.functional.cross_entropy(model(torch.randn(8, 24)), torch.randint(7, (8,)))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
report([param.full_tensor() for param in model.parameters()], losses=losses)
dist.destroy_process_group()
