"""Enough iterations for a comparison, with all that a step may leave behind: momentum, accumulation, a schedule.

Gradients are kept, which are views of torch's buckets; with LENDS one rank keeps other views of these.
"""

import os

import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
ddp = DistributedDataParallel(model, gradient_as_bucket_view=True)
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 20, 0.9)

torch.manual_seed(100 + dist.get_rank())
losses, kept, seen = [], [], []
for iteration in range(300):
    optimizer.zero_grad(set_to_none=iteration % 2 == 0)
    if iteration % 3 == 0:
        with ddp.no_sync():
            nn.functional.cross_entropy(ddp(torch.randn(16, 32)), torch.randint(10, (16,))).backward()
    loss = nn.functional.cross_entropy(ddp(torch.randn(16, 32)), torch.randint(10, (16,)))
    loss.backward()
    optimizer.step()
    schedule.step()
    losses.append(loss.item())
    if iteration == 5:
        lends = "LENDS" in os.environ and dist.get_rank() == 0
        kept = [param.grad.view(-1) if lends else param.grad for param in ddp.parameters()]
    seen.append([grad.view(-1).sum().item() for grad in kept])
grads = [param.grad for param in ddp.parameters()]
report(ddp, state=optimizer.state_dict(), losses=losses, grads=grads, seen=seen)
