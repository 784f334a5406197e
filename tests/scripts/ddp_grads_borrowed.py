"""A `.grad` that is put into another parameter's, and gradients that two parameters have in one place; freezing between
forward and backward.
"""

import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
outsider = nn.Parameter(torch.zeros(32, 32))


def same(first, second, third):
    second.weight.grad = first.weight.grad


def views(first, second, third):
    third.weight.grad = first.weight.grad[:10]
    first.bias.grad = second.bias.grad.detach()


def exchanged(first, second, third):
    first.weight.grad, second.weight.grad = second.weight.grad, first.weight.grad


def elsewhere(first, second, third):
    outsider.grad = first.weight.grad


def nothing(first, second, third):
    pass


def train(way, frozen=False):
    torch.manual_seed(1)
    layers = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 10))
    ddp = DistributedDataParallel(layers)
    optimizer = torch.optim.SGD([*ddp.parameters(), outsider], lr=0.1, momentum=0.9)
    torch.manual_seed(100 + dist.get_rank())
    for iteration in range(6):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(ddp(torch.randn(16, 32)), torch.randint(10, (16,)))
        layers[0].requires_grad_(not (frozen and iteration % 2 and dist.get_rank()))
        loss.backward()
        layers[0].requires_grad_()
        if iteration % 3:
            way(*layers)
        optimizer.step()
    return ddp


def between_optimizers():
    """One optimizer updates by the gradients of another one's module, and one has parameters in the same memory."""
    lender, borrower, third = (DistributedDataParallel(nn.Linear(32, 10)) for _ in range(3))
    with torch.no_grad():
        lender.module.bias[0] = 0.1
    rate = torch.optim.SGD(borrower.parameters(), lr=lender.module.bias.data[0], foreach=False)
    views = [nn.Parameter(p.data) for p in lender.parameters()]
    first, second, again = (
        torch.optim.SGD(params, lr=0.1, momentum=0.9)
        for params in (lender.parameters(), borrower.parameters(), [*third.parameters(), *views])
    )
    for iteration in range(12):
        modules = [lender, third] if iteration > 3 else [lender, borrower, third]
        for module in (lender, borrower, third):
            module.zero_grad()
        inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
        sum(nn.functional.cross_entropy(module(inputs), labels) for module in modules).backward()
        if iteration % 2:
            first.step()
        if iteration > 3:
            for ours, theirs in zip(borrower.parameters(), lender.parameters(), strict=True):
                ours.grad = theirs.grad
        second.step()
        rate.step()
        if iteration % 2 == 0:
            first.step()
        for view in views:
            view.grad = torch.full_like(view, 0.1)
        again.step()
    return [lender, borrower, third]


models = [train(way) for way in (same, views, exchanged, elsewhere)]
models += [train(nothing, frozen=True), *between_optimizers()]
report(models, outsider=outsider)
