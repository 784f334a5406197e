"""Adam with a closure that clips."""

import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 128), nn.ReLU(), nn.Linear(128, 10))
ddp = DistributedDataParallel(model)
optimizer = torch.optim.Adam(ddp.parameters(), lr=1e-2)

torch.manual_seed(100 + dist.get_rank())
losses, norms = [], []
for iteration in range(8):
    inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))

    def closure(inputs=inputs, labels=labels, iteration=iteration):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(ddp(inputs), labels)
        loss.backward()
        if iteration % 2:
            norms.append(nn.utils.clip_grad_norm_(ddp.parameters(), 0.5))
        return loss

    losses.append(optimizer.step(closure).item())
report(ddp, state=optimizer.state_dict(), losses=losses, norms=norms)
