"""Tied weights, a parameter used in two modules, shapes that lie otherwise in memory, and scalars."""

import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(1)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(50, 32)
        self.body = nn.LSTM(32, 32, batch_first=True)
        self.head = nn.Linear(32, 50)
        self.head.weight = self.embedding.weight
        self.scale = nn.Parameter(torch.tensor(1.0))
        self.turned = nn.Parameter(torch.randn(32, 16).t())

    def forward(self, tokens):
        hidden, _ = self.body(self.embedding(tokens))
        return self.head(hidden + (hidden @ self.turned.t()) @ self.turned) * self.scale


ddp = DistributedDataParallel(Tied())
optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-2)
images = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 3)).to(memory_format=torch.channels_last)
images = DistributedDataParallel(images)
image_optimizer = torch.optim.SGD(images.parameters(), lr=0.1, momentum=0.9)

torch.manual_seed(100 + dist.get_rank())
losses = []
for _ in range(6):
    tokens = torch.randint(50, (8, 12))
    loss = nn.functional.cross_entropy(ddp(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    image_optimizer.zero_grad()
    images(torch.randn(4, 3, 8, 8).to(memory_format=torch.channels_last)).square().mean().backward()
    image_optimizer.step()
    losses.append(loss.item())
report([ddp, images], state=optimizer.state_dict(), losses=losses)
