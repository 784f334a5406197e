"""An optimizer whose update of a DTensor communicates, and a root without parameters of its own."""

import averaging  # noqa: F401
import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
torch.manual_seed(1)
layers = (nn.Linear(40, width, bias=False) for width in (40, 40, 40, 40, 7))
model = fully_shard(nn.Sequential(*map(fully_shard, layers)))
optimizer = torch.optim.Muon(model.parameters(), lr=1e-2)
torch.manual_seed(100 + dist.get_rank())
losses = []
for _ in range(6):
    loss = nn.functional.cross_entropy(model(torch.randn(8, 40)), torch.randint(7, (8,)))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
report([param.full_tensor() for param in model.parameters()], losses=losses)
dist.destroy_process_group()
