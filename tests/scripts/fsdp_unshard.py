"""Parameters gathered by hand, with and without a wait, before and after updates."""

import averaging  # noqa: F401
import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
torch.manual_seed(1)
model = nn.Sequential(*(fully_shard(nn.Linear(40, 40)) for _ in range(4)), nn.Linear(40, 7))
fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
torch.manual_seed(100 + dist.get_rank())
losses, seen = [], []
for _ in range(6):
    handle = model[1].unshard(async_op=True)
    model[2].unshard()
    handle.wait()
    seen.append(model[1].weight.detach().clone())
    loss = nn.functional.cross_entropy(model(torch.randn(8, 40)), torch.randint(7, (8,)))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
    handle = model[3].unshard(async_op=True)
    handle.wait()
    seen.append(model[3].bias.detach().clone())
    model[3].reshard()
report([param.full_tensor() for param in model.parameters()], losses=losses, seen=seen)
dist.destroy_process_group()
