"""The optimizer's state held from before: moments in a log, reset by hand, and shared out among the ranks."""

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
seen, moments, state = [], [], None
for iteration in range(12):
    inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
    optimizer.zero_grad()
    nn.functional.cross_entropy(ddp(inputs), labels).backward()
    optimizer.step()
    if iteration == 0:
        state = optimizer.state
        moments = [state[p]["exp_avg"] for p in ddp.parameters()]
    elif iteration % 3 == 0:
        seen += [moment.abs().sum().item() for moment in moments]
    elif iteration % 3 == 1:
        seen += [state[p]["step"].item() for p in ddp.parameters()]
        with torch.no_grad():
            for moment in moments:
                moment.mul_(0.5)
    else:
        for each in optimizer.state.values():
            dist.all_reduce(each["exp_avg_sq"])
report(ddp, state=optimizer.state_dict(), seen=seen)
