"""Branches that differ by rank and iteration: parameters unused here, there, and by all."""

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
        self.stem = nn.Linear(32, 64)
        self.branches = nn.ModuleList([nn.Linear(64, 64) for _ in range(4)])
        self.never = nn.Linear(8, 8)
        self.head = nn.Linear(64, 10)

    def forward(self, inputs, chosen):
        hidden = self.stem(inputs).relu()
        for number in chosen:
            hidden = hidden + self.branches[number](hidden).relu()
        return self.head(hidden), hidden


rank = dist.get_rank()
plans = [[0], [0, 1] if rank else [2], [], [3] if rank == 0 else [], [0, 1, 2, 3], [1], [], [rank], [rank + 1], [3]]
losses, absent, grads, models, states = [], [], [], [], []
for as_view in (False, True):
    torch.manual_seed(1)
    model = Branches()
    ddp = DistributedDataParallel(model, find_unused_parameters=True, gradient_as_bucket_view=as_view)
    optimizer = torch.optim.Adam(ddp.parameters(), lr=1e-2)
    torch.manual_seed(100 + rank)
    for iteration, chosen in enumerate(plans):
        inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
        if iteration % 3:
            optimizer.zero_grad()
        elif as_view:  # What nobody uses is averaged there, too.
            for param in ddp.parameters():
                if param.grad is not None:
                    param.grad.mul_(1 + rank)
        outputs, hidden = ddp(inputs, chosen)
        loss = nn.functional.cross_entropy(outputs, labels)
        if iteration % 4 == 3:
            loss = hidden.square().mean()  # the head has no part
        loss.backward()
        absent.append([p.grad is None for p in ddp.parameters()])
        optimizer.step()
        losses.append(loss.item())
    grads += [torch.zeros(1) if p.grad is None else p.grad for p in ddp.parameters()]
    models.append(ddp)
    states.append(optimizer.state_dict())
report([p for ddp in models for p in ddp.parameters()], states=states, losses=losses, absent=absent, grads=grads)
