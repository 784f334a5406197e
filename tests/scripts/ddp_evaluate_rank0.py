"""The first rank alone evaluates between steps, with the module and with what is within."""

import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(32, 96), nn.BatchNorm1d(96), nn.ReLU(), nn.Dropout(0.2), nn.Linear(96, 10))
ddp = DistributedDataParallel(model)
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)

torch.manual_seed(100 + dist.get_rank())
held_out, scores = torch.randn(64, 32), [0.0]
for iteration in range(10):
    ddp.train()
    inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
    optimizer.zero_grad()
    nn.functional.cross_entropy(ddp(inputs), labels).backward()
    optimizer.step()
    if dist.get_rank() == 0 and iteration % 3 == 2:
        ddp.eval()
        with torch.inference_mode():
            scores.append(model(held_out).logsumexp(1).mean().item())
        with torch.no_grad():
            scores.append(sum(p.abs().sum().item() for p in ddp.parameters()))
    dist.barrier()
report(list(ddp.parameters()), scores=scores, buffers=list(ddp.buffers()))
