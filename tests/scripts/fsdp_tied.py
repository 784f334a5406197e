"""An embedding and a head that have the same weights, and blocks inside blocks."""

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
        self.embedding = nn.Embedding(50, 32)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)) for _ in range(3))
        self.head = nn.Linear(32, 50, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        values = self.embedding(tokens)
        for block in self.blocks:
            values = values + block(values)
        return self.head(values)


model = Model()
for block in model.blocks:
    fully_shard(block[0])
    fully_shard(block)
fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
torch.manual_seed(100 + dist.get_rank())
losses = []
for _ in range(8):
    tokens = torch.randint(50, (4, 12))
    loss = nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
report([param.full_tensor() for param in model.parameters()], losses=losses)
dist.destroy_process_group()
