"""Checkpoints that are not re-entrant, and re-entrant ones of disjoint blocks."""

import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

dist.init_process_group("gloo")
torch.manual_seed(1)


class Blocks(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.reentrant = reentrant
        self.stem = nn.Linear(32, 64)
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.1), nn.GELU()) for _ in range(3)])
        self.head = nn.Linear(64, 10)

    def forward(self, inputs):
        hidden = self.stem(inputs)
        for block in self.blocks:
            hidden = checkpoint(block, hidden, use_reentrant=self.reentrant)
        return self.head(hidden)


models, losses = [], []
for reentrant in (False, True):
    ddp = DistributedDataParallel(Blocks(reentrant))
    optimizer = torch.optim.Adam(ddp.parameters(), lr=1e-2)
    torch.manual_seed(100 + dist.get_rank())
    for _ in range(6):
        inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
        loss = nn.functional.cross_entropy(ddp(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    models.append(ddp)
report(models, losses=losses)
