"""Modules that a forward pass leaves out, evaluations in between, and gradients that are cleared in place."""

import averaging  # noqa: F401
import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
torch.manual_seed(1)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(fully_shard(nn.Linear(40, 40)) for _ in range(5))
        self.head = nn.Linear(40, 7)

    def forward(self, values, left_out):
        for place, layer in enumerate(self.layers):
            if place not in left_out:
                values = layer(values).tanh()
        return self.head(values)


model = fully_shard(Model())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
torch.manual_seed(100 + dist.get_rank())
losses, seen = [], []
for iteration in range(9):
    loss = nn.functional.cross_entropy(
        model(torch.randn(8, 40), {iteration % 5, (iteration + 2) % 5}), torch.arange(8) % 7
    )
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    losses.append(loss.item())
    if iteration % 3 == 1:
        model.eval()
        with torch.no_grad():
            seen.append(model(torch.ones(2, 40), {1}))
        model.train()
report([param.full_tensor() for param in model.parameters()], losses=losses, seen=seen)
dist.destroy_process_group()
