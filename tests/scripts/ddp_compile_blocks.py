"""Blocks compiled one by one, in both ways that torch has, and another size of batch that has them compiled anew."""

import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch._dynamo.utils import counters
from torch.nn.parallel import DistributedDataParallel


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(64)
        self.up, self.down = nn.Linear(64, 128), nn.Linear(128, 64)

    def forward(self, hidden):
        return hidden + self.down(nn.functional.gelu(self.up(self.norm(hidden))))


dist.init_process_group("gloo")
torch.manual_seed(1)
blocks = [Block() for _ in range(4)]
for place in (0, 1):
    blocks[place].compile(backend="aot_eager")
for place in (2, 3):
    blocks[place] = torch.compile(blocks[place], backend="aot_eager")
model = nn.Sequential(nn.Linear(32, 64), *blocks, nn.Linear(64, 10))
ddp = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-2)
torch.manual_seed(100 + dist.get_rank())
losses = []
for iteration in range(10):
    size = 16 if iteration < 6 else 12
    inputs, labels = torch.randn(size, 32), torch.randint(10, (size,))
    loss = nn.functional.cross_entropy(ddp(inputs), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
graphs = [sum(counters["graph_break"].values()), counters["stats"]["unique_graphs"], counters["frames"]["total"]]
report(model, losses=losses, state=optimizer.state_dict(), graphs=graphs)
