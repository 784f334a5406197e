"""Layers thawed one after another, each added to the optimizer then; and a parameter with no elements."""

import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(1)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(32, 64), nn.Linear(64, 64), nn.Linear(64, 10)])
        self.empty = nn.Parameter(torch.empty(0, 4))

    def forward(self, inputs):
        hidden = inputs + self.empty.sum()
        for layer in self.layers:
            hidden = layer(hidden).relu()
        return hidden


model = Model()
ddp = DistributedDataParallel(model, find_unused_parameters=True)
optimizer = torch.optim.AdamW([*model.layers[2].parameters(), model.empty], lr=1e-2)
model.layers[:2].requires_grad_(False)

torch.manual_seed(100 + dist.get_rank())
losses = []
for iteration in range(12):
    if iteration in (4, 8):
        layer = model.layers[1 if iteration == 4 else 0].requires_grad_(True)
        optimizer.add_param_group({"params": layer.parameters(), "lr": 1e-3})
    if iteration == 10:
        optimizer.param_groups[0]["lr"] = 0.1
        optimizer.param_groups[1]["params"] = optimizer.param_groups[1]["params"][:1]
    inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
    loss = nn.functional.cross_entropy(ddp(inputs), labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
report(ddp, losses=losses, rates=[group["lr"] for group in optimizer.param_groups])
