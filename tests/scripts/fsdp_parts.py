"""Parts of a model: an evaluation of the encoder alone before an update, layers that all ranks skip at times and
use twice, activation checkpoints, and one layer unsharded by hand.
"""

import averaging  # noqa: F401
import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint

dist.init_process_group("gloo")
torch.manual_seed(1)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(*(fully_shard(nn.Linear(40, 40)) for _ in range(3)))
        self.decoder = nn.ModuleList(fully_shard(nn.Linear(40, 40)) for _ in range(3))
        self.head = nn.Linear(40, 7)

    def forward(self, inputs, skipped):
        values = checkpoint(self.encoder, self.encoder(inputs), use_reentrant=False)
        for place, layer in enumerate(self.decoder):
            if place != skipped:
                values = layer(layer(values)).relu()
        return self.head(values)


model = Model()
fully_shard(model.encoder)
fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

torch.manual_seed(100 + dist.get_rank())
losses, seen = [], []
for iteration in range(9):
    loss = nn.functional.cross_entropy(model(torch.randn(8, 40), iteration % 4), torch.randint(7, (8,)))
    loss.backward()
    if iteration % 2:
        with torch.no_grad():
            seen.append(model.encoder(torch.ones(2, 40)))
    optimizer.step()
    optimizer.zero_grad()
    if iteration == 6:
        model.decoder[0].unshard()
        seen.append(model.decoder[0].weight.detach().clone())
        model.decoder[0].reshard()
    losses.append(loss.item())
report([param.full_tensor() for param in model.parameters()], losses=losses, seen=seen)
dist.destroy_process_group()
