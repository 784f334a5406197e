"""PowerSGD, whose state is that of torch's buckets: its second all-reduce depends on the first."""

import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 128), nn.ReLU(), nn.Linear(128, 10))
ddp = DistributedDataParallel(model)
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=3)
ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)

torch.manual_seed(100 + dist.get_rank())
losses = []
for _ in range(7):
    inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(ddp(inputs), labels)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
report(ddp, losses=losses)
