"""Reads of what pending updates change, of which torch tells nobody: by functions that the program imported by name
before the first module was wrapped, by code of the program that torch calls, and by backward passes.
"""

import os
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import multiprocessing, nn
from torch._C import DisableTorchFunction
from torch.autograd.graph import get_gradient_edge
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map
from torch.utils.dlpack import from_dlpack, to_dlpack
from ways import adam, backward, batch, loss_of, run_ddp, train, way

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
    return F.triplet_margin_with_distance_loss(*inputs, distance_function=lambda x, y: ((x - y) @ kept.t()).norm(dim=1))


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


class Holder(torch.Tensor):
    """Tensor of the program's own class, made of another, as in torch's examples of __torch_dispatch__."""

    @staticmethod
    def __new__(cls, tensor):
        holder = torch.Tensor._make_wrapper_subclass(cls, tensor.size(), dtype=tensor.dtype)
        holder.tensor = tensor
        return holder

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return func(*tree_map(lambda value: value.tensor if isinstance(value, Holder) else value, args), **kwargs or {})


def reading(make):
    def reads(ddp, optimizer):
        seen, made = [], make(ddp.module[4].bias.data)
        for _ in range(8):
            train(ddp, optimizer)
            seen.append((made @ torch.ones(10, 1)).sum().item())
        return seen

    return reads


warnings.filterwarnings("ignore", "Sparse CSR tensor support")
places = torch.arange(10)
for name, make in {
    "coordinates": lambda values: torch.sparse_coo_tensor(torch.stack([places, places]), values, (10, 10)),
    "compressed": lambda values: torch.sparse_csr_tensor(torch.arange(11), places, values, (10, 10)),
    "own_class": lambda values: Holder(values.view(1, 10)),
}.items():
    reads = reading(make)
    reads.__name__ = name
    way()(reads)


def answer(tensors, asked, answers):
    while os.read(asked, 1):
        answers.send([tensor.double().sum().item() for tensor in tensors])


def shared(tensors):
    """Return a function that asks another process for the sums of these."""
    for tensor in tensors:
        tensor.share_memory_()
    asked, ask = os.pipe()
    ours, theirs = multiprocessing.Pipe()
    multiprocessing.get_context("fork").Process(target=answer, args=(tensors, asked, theirs), daemon=True).start()
    return lambda: os.write(ask, b"?") and ours.recv()


@way(make=adam)
def in_shared_memory(ddp, optimizer):
    train(ddp, optimizer)
    gradients = shared([param.grad for param in ddp.parameters()])
    moments, seen = shared([optimizer.state[param]["exp_avg"] for param in ddp.parameters()]), []
    for _ in range(6):
        optimizer.zero_grad(set_to_none=False)
        backward(ddp)
        seen.append(gradients())
        optimizer.step()
        seen.append(moments())
    return seen


executor = ThreadPoolExecutor(1)


class Logging(nn.Module):
    """Module that reads parameters, also in another thread, where torch asks it for them."""

    def __init__(self):
        super().__init__()
        self.first, self.last, self.log = nn.Linear(32, 96), nn.Linear(96, 10), []
        self.kept = [self.first.weight, self.last.weight]

    def forward(self, inputs):
        return self.last(self.first(inputs).relu())

    def named_parameters(self, *args, **kwargs):
        self.log += [self.first.bias.sum().item(), *executor.map(lambda tensor: tensor.sum().item(), self.kept)]
        return super().named_parameters(*args, **kwargs)


@way(Logging)
def within_zero_grad(ddp, optimizer):
    ddp.module.log.clear()
    for _ in range(8):
        backward(ddp)
        optimizer.step()
        ddp.module.zero_grad()
    return ddp.module.log


class Reads(TorchFunctionMode):
    def __init__(self, read):
        super().__init__()
        self.read = read

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.read()
        return func(*args, **(kwargs or {}))


@way()
def by_a_mode(ddp, optimizer):
    kept, seen = ddp.module[4].weight, []
    for _ in range(8):
        backward(ddp)
        optimizer.step()
        with Reads(lambda: seen.append(kept.sum().item())):
            optimizer.zero_grad(set_to_none=False)
    return seen


@way()
def may_change_saved_tensors(ddp, optimizer):
    seen = []
    for _ in range(8):
        optimizer.zero_grad()
        with torch.autograd.graph.allow_mutation_on_saved_tensors():
            inputs, labels = batch()
            earlier = ddp.module(inputs).pow(2).sum()
            loss_of(ddp, inputs, labels).backward()
            optimizer.step()
            (gradient,) = torch.autograd.grad(earlier, ddp.module[0].weight)
            seen.append(gradient.sum().item())
    return seen


run_ddp()
