"""An optimizer whose state is spread over the ranks."""

import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 128), nn.ReLU(), nn.Linear(128, 10))
ddp = DistributedDataParallel(model)
optimizer = ZeroRedundancyOptimizer(ddp.parameters(), optimizer_class=torch.optim.Adam, lr=1e-2)

torch.manual_seed(100 + dist.get_rank())
losses = []
for _ in range(7):
    inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
    ddp.zero_grad()
    loss = nn.functional.cross_entropy(ddp(inputs), labels)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
report(ddp, losses=losses)
