"""Activation checkpointing, reentrant and not: backward runs parts of the forward pass again."""

import byteps.torch as bps
import torch
from report import report
from torch import nn
from torch.utils.checkpoint import checkpoint

bps.init()
torch.manual_seed(1)
blocks = nn.ModuleList([nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 64)) for _ in range(3)])
model = nn.ModuleDict({"stem": nn.Linear(32, 64), "blocks": blocks, "head": nn.Linear(64, 10)})
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
optimizer = bps.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
bps.broadcast_parameters(model.state_dict(), root_rank=0)

torch.manual_seed(100 + bps.rank())
losses = []
for iteration in range(6):
    inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
    hidden = model["stem"](inputs)
    for block in blocks:
        hidden = hidden + checkpoint(block, hidden, use_reentrant=iteration % 2 == 0)
    loss = nn.functional.cross_entropy(model["head"](hidden), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
report(model, losses=losses)
