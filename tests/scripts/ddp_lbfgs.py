"""LBFGS, whose step() calls a closure many times."""

import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 128), nn.ReLU(), nn.Linear(128, 10))
ddp = DistributedDataParallel(model)
optimizer = torch.optim.LBFGS(ddp.parameters(), lr=0.1, max_iter=4, history_size=4, line_search_fn=None)

torch.manual_seed(100 + dist.get_rank())
losses = []
for _ in range(3):
    inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))

    def closure(inputs=inputs, labels=labels):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(ddp(inputs), labels)
        loss.backward()
        return loss

    losses.append(optimizer.step(closure).item())
report(ddp, losses=losses)
