"""Several forward passes before one backward, and several backward passes of one forward."""

import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(1)


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(32, 64), nn.Linear(32, 64)

    def forward(self, inputs):
        return self.first(inputs), self.second(inputs)


two = DistributedDataParallel(Two())
model = nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 128), nn.ReLU(), nn.Linear(128, 10))
ddp = DistributedDataParallel(model)
optimizer = torch.optim.SGD([*two.parameters(), *ddp.parameters()], lr=0.05, momentum=0.9)

torch.manual_seed(100 + dist.get_rank())
losses = []
for _ in range(7):
    inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
    optimizer.zero_grad()
    # A round that takes two backward passes.
    first, second = two(inputs)
    (first - 1).square().mean().backward()
    second.square().mean().backward()
    # One loss of two forward passes.
    loss = nn.functional.cross_entropy(ddp(inputs), labels)
    loss = loss + nn.functional.cross_entropy(ddp(inputs.flip(1)), labels)
    loss.backward(retain_graph=True)
    losses.append(loss.item())
    optimizer.step()
report([two, ddp], state=optimizer.state_dict(), losses=losses)
