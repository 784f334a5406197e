"""Errors within a training step, which the script catches: in the data, in forward, in the loss."""

import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(1)


class Picky(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 10))

    def forward(self, inputs):
        hidden = self.body[0](inputs)
        if inputs[0, 0] == 9:
            raise ValueError("not this one")
        return self.body[2](self.body[1](hidden))


ddp = DistributedDataParallel(Picky())
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)

torch.manual_seed(100 + dist.get_rank())
caught, losses = [], []
for iteration in range(12):
    inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
    if iteration in (3, 7):
        inputs[0, 0] = 9
    optimizer.zero_grad()
    try:
        outputs = ddp(inputs)
        if iteration == 5:
            raise KeyError("between forward and backward")
        loss = nn.functional.cross_entropy(outputs, labels)
        loss.backward()
        if iteration == 9:
            raise RuntimeError("before the step")
        optimizer.step()
        losses.append(loss.item())
    except (ValueError, KeyError, RuntimeError) as error:
        caught.append(str(error))
report(ddp, losses=losses, caught=[caught, len(caught)])
