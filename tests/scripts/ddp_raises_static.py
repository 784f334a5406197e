"""A static graph that changes: torch says so in the iteration in which it does, and at the next one."""

import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.extra, self.last = (nn.Linear(8, 8) for _ in range(3))
        self.uses = 1

    def forward(self, inputs):
        inputs = self.first(inputs)
        for _ in range(self.uses):
            inputs = self.extra(inputs)
        return self.last(inputs)


def until_refused(first, then):
    """Trains with so many uses of a layer in the first two iterations, and with others from then on."""
    torch.manual_seed(1)
    ddp = DistributedDataParallel(Net(), static_graph=True)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    torch.manual_seed(100 + rank)
    for step in range(4):
        ddp.module.uses = first if step < 2 else then
        optimizer.zero_grad()
        try:
            loss = ddp(torch.randn(4, 8)).square().mean()
        except RuntimeError as error:
            return [f"forward {step}", str(error)[:40]]
        try:
            loss.backward()
        except RuntimeError as error:
            # Some gradients may be on their way, but nothing was stepped.
            return [f"backward {step}", str(error)[:40], list(ddp.parameters())]
        optimizer.step()
    return [list(ddp.parameters())]


def second_gradient():
    """A gradient more, after all of the iteration are there."""

    class Again(torch.autograd.Function):
        @staticmethod
        def forward(ctx, inputs):
            return inputs.clone()

        @staticmethod
        def backward(ctx, grad):
            with torch.enable_grad():
                ddp.module.last.weight.sum().backward()
            return grad

    torch.manual_seed(1)
    ddp = DistributedDataParallel(Net())
    torch.manual_seed(100 + rank)
    inputs = torch.randn(4, 8, requires_grad=True)
    try:
        ddp(Again.apply(inputs)).square().mean().backward()
    except RuntimeError as error:
        return str(error)[:40]


said = [until_refused(0, 1), until_refused(1, 0), until_refused(1, 1), until_refused(2, 2), second_gradient()]
report([torch.ones(1)], said=[said, 1])
dist.destroy_process_group()
