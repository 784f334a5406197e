"""Reads of what pending updates change, of which torch tells nobody: by functions that the program imported by name
before the first module was wrapped, by code of the program that torch calls, and by backward passes.
"""

import numpy as np
import torch
from torch._C import DisableTorchFunction
from torch.autograd.graph import get_gradient_edge
from torch.nn import functional as F
from torch.utils.dlpack import from_dlpack, to_dlpack
from ways import adam, backward, run_ddp, train, way

to_numpy = torch.Tensor.numpy


def total(exported):
    return np.abs(from_dlpack(exported).numpy()).sum()


@way()
def exported_by_name(ddp, optimizer):
    kept, seen = ddp.module[4].weight.data, []
    for _ in range(8):
        optimizer.zero_grad()
        backward(ddp)
        seen.append(total(to_dlpack(ddp.module[0].weight.grad)))
        optimizer.step()
        seen.append(total(to_dlpack(kept)))
    return seen


@way()
def lent_by_name(ddp, optimizer):
    train(ddp, optimizer)
    array, seen = to_numpy(ddp.module[4].weight.data), []
    for _ in range(8):
        train(ddp, optimizer)
        seen.append(np.abs(array).sum())
    return seen


def after_each_step(ddp, optimizer, read):
    kept, seen = ddp.module[4].weight, []
    for _ in range(8):
        train(ddp, optimizer)
        with torch.no_grad():
            seen.append(read(kept))
    return seen


def disabled(kept):
    with DisableTorchFunction():
        return kept.sum().item()


@way()
def without_overrides(ddp, optimizer):
    return after_each_step(ddp, optimizer, disabled)


def distance(kept):
    inputs = torch.ones(4, 128), torch.zeros(4, 128), torch.full((4, 128), 0.3)
    return F.triplet_margin_with_distance_loss(
        *inputs, distance_function=lambda x, y: ((x - y) @ kept.t()).norm(dim=1)
    )


@way()
def calls_a_function(ddp, optimizer):
    return after_each_step(ddp, optimizer, distance)


class Rows:
    def __init__(self, tensor):
        self.tensor = tensor

    def __len__(self):
        return len(self.tensor)

    def __getitem__(self, place):
        return self.tensor[place].sum().item()


@way()
def calls_a_method(ddp, optimizer):
    return after_each_step(ddp, optimizer, lambda kept: torch.tensor(Rows(kept)))


@way()
def begins_with_it(ddp, optimizer):
    kept, seen = ddp.module[4].bias.data, []
    for _ in range(8):
        optimizer.zero_grad()
        backward(ddp)
        inputs = torch.ones(96, requires_grad=True)
        torch.autograd.backward([get_gradient_edge(inputs * 2)], [ddp.module[0].bias.grad])
        optimizer.step()
        others = torch.ones(10, requires_grad=True)
        torch.autograd.backward([get_gradient_edge(others * 2)], grad_tensors=[kept])
        seen += [inputs.grad, others.grad]
    return seen


@way()
def saved_before_a_step(ddp, optimizer):
    kept, seen = ddp.module[4].weight.data, []
    for _ in range(8):
        scale = torch.ones(10, 128, requires_grad=True)
        product = (scale * kept).sum()
        train(ddp, optimizer)
        product.backward()
        seen.append(scale.grad)
    return seen


@way(make=adam)
def saved_state(ddp, optimizer):
    """Torch refuses such a backward pass."""
    train(ddp, optimizer)
    seen = []
    for _ in range(8):
        moment = optimizer.state[ddp.module[4].weight]["exp_avg"]
        product = (torch.ones(10, 128, requires_grad=True) * moment).sum()
        train(ddp, optimizer)
        try:
            product.backward()
            seen.append("nothing")
        except RuntimeError as error:
            seen.append(str(error)[:60])
    return seen


run_ddp()
