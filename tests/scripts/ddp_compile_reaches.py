"""Compiled blocks that use what is not theirs: a parameter in a list, and Python between two graphs."""

import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch._dynamo.utils import counters
from torch.nn.parallel import DistributedDataParallel


class Block(nn.Module):
    def __init__(self, others, breaks):
        super().__init__()
        self.own = nn.Linear(48, 48)
        self.others, self.breaks = others, breaks  # a list: not this module's

    def forward(self, hidden):
        hidden = torch.relu(self.own(hidden))
        if self.breaks:
            torch._dynamo.graph_break()
        return hidden + hidden @ self.others[0]


dist.init_process_group("gloo")
models, losses = [], []
torch.manual_seed(1)
ddps = []
for breaks in (False, True):
    last = nn.Linear(48, 48)
    block = Block([last.weight], breaks)
    model = nn.Sequential(nn.Linear(32, 48), block, last, nn.Linear(48, 10))
    block.compile(backend="aot_eager")
    ddps.append(DistributedDataParallel(model))
optimizers = [torch.optim.Adam(ddp.parameters(), lr=1e-2) for ddp in ddps]
torch.manual_seed(100 + dist.get_rank())
for iteration in range(10):
    inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
    for ddp, optimizer in zip(ddps[: 1 if iteration < 5 else 2], optimizers, strict=False):
        loss = nn.functional.cross_entropy(ddp(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
graphs = [sum(counters["graph_break"].values()), counters["stats"]["unique_graphs"]]
report([ddp.module for ddp in ddps], losses=losses, graphs=graphs)
