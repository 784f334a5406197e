"""Parameters used within no_sync() and not in the pass that averages, and outputs without a part."""

import contextlib

import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(1)


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.first, self.second = nn.Linear(32, 64), nn.Linear(64, 10), nn.Linear(64, 10)
        self.third = nn.Linear(64, 10)

    def forward(self, inputs, which):
        hidden = self.stem(inputs).relu()
        return {"logits": (self.first, self.second)[which](hidden), "other": self.third(hidden)}


ddp = DistributedDataParallel(Branches(), find_unused_parameters=True)
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)

torch.manual_seed(100 + dist.get_rank())
absent, grads = [], []
for iteration in range(8):
    optimizer.zero_grad()
    for part in range(2):
        inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
        with ddp.no_sync() if part == 0 else contextlib.nullcontext():
            which = part if iteration % 2 else (part + dist.get_rank()) % 2
            outputs = ddp(inputs, which if iteration != 6 else 0)
            loss = nn.functional.cross_entropy(outputs["logits"], labels)
            if iteration in (3, 4) and dist.get_rank() == part:
                loss = loss + outputs["other"].square().mean()
            if iteration == 5 and part == 0:
                loss = outputs["other"].square().mean()
            loss.backward()
    absent.append([p.grad is None for p in ddp.parameters()])
    grads += [p.grad.clone() for p in ddp.parameters() if p.grad is not None]
    optimizer.step()
report(ddp, state=optimizer.state_dict(), absent=absent, grads=grads)
