"""A static graph with re-entrant checkpoints, one block of which is used twice."""

import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

dist.init_process_group("gloo")
torch.manual_seed(1)


class Blocks(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(32, 64)
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(3)])
        self.unused = nn.Linear(3, 3)
        self.head = nn.Linear(64, 10)

    def forward(self, inputs):
        hidden = self.stem(inputs)
        for block in (*self.blocks, self.blocks[0]):
            hidden = checkpoint(block, hidden, use_reentrant=True)
        return self.head(hidden)


ddp = DistributedDataParallel(Blocks(), static_graph=True)
late = DistributedDataParallel(Blocks())
late._set_static_graph()
optimizer = torch.optim.AdamW([*ddp.parameters(), *late.parameters()], lr=1e-2)

torch.manual_seed(100 + dist.get_rank())
losses = []
for _ in range(7):
    inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
    for model in (ddp, late):
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        losses.append(loss.item())
    optimizer.step()
    optimizer.zero_grad()
report([ddp, late], state=optimizer.state_dict(), losses=losses)
