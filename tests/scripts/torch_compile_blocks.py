"""Blocks compiled one by one, through autograd as well, and an embedding and a head that are not."""

import byteps.torch as bps
import torch
from report import report
from torch import nn

bps.init()
torch.manual_seed(1)
blocks = nn.ModuleList(
    [nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64)) for _ in range(2)]
)
model = nn.ModuleDict({"stem": nn.Linear(32, 64), "blocks": blocks, "head": nn.Linear(64, 10)})
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
optimizer = bps.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
bps.broadcast_parameters(model.state_dict(), root_rank=0)

torch.manual_seed(100 + bps.rank())
compiled = [torch.compile(block, backend="aot_eager") for block in blocks]
losses = []
for _ in range(6):
    inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
    hidden = model["stem"](inputs)
    for block in compiled:
        hidden = hidden + block(hidden)
    loss = nn.functional.cross_entropy(model["head"](hidden), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
report(model, losses=losses)
