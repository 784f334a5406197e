"""Optimizers' states and groups in classes and places of a program's own, or replaced; gradients that a step writes."""

import ctypes
from collections import defaultdict

import numpy as np
import torch
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel
from ways import adam, batch, loss_of, run_ddp, sgd, train, way


@way(make=adam)
def states_replaced(ddp, optimizer):
    """Without a look at what they were: a part of each, each, all in place, and the dictionary of all."""
    losses = []
    for iteration in range(14):
        losses.append(train(ddp, optimizer))
        if iteration % 5 == 1:
            for p, own in vars(optimizer)["state"].items():
                own["exp_avg"] = torch.ones(tuple(p.shape))
        elif iteration % 5 == 2:
            for p in list(vars(optimizer)["state"]):
                shape = tuple(p.shape)
                fresh = {"step": torch.tensor(3.0), "exp_avg": torch.zeros(shape), "exp_avg_sq": torch.ones(shape)}
                vars(optimizer)["state"][p] = fresh
        elif iteration % 5 == 3:
            vars(optimizer)["state"].clear()
        elif iteration == 9:
            vars(optimizer)["state"] = defaultdict(dict)
    return losses, optimizer.state_dict()


@way()
def momentum_dropped(ddp, optimizer):
    for iteration in range(8):
        train(ddp, optimizer)
        if iteration % 3 == 1:
            for own in vars(optimizer)["state"].values():
                del own["momentum_buffer"]
    return optimizer.state_dict()


def cleared_after_forward(ddp, optimizer):
    """Every parameter has a gradient while others are updated."""
    for _ in range(8):
        loss = loss_of(ddp, *batch())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


class Grouped(torch.optim.SGD):
    @property
    def param_groups(self):
        return self.groups

    @param_groups.setter
    def param_groups(self, groups):
        self.groups = groups


@way(make=lambda params: Grouped(params, lr=0.1, momentum=0.9))
def groups_elsewhere(ddp, optimizer):
    cleared_after_forward(ddp, optimizer)
    return optimizer.state_dict()


class Kept(torch.optim.Adam):
    @property
    def state(self):
        return self.kept

    @state.setter
    def state(self, state):
        self.kept = state


@way(make=lambda params: Kept(params, lr=1e-2))
def states_elsewhere(ddp, optimizer):
    cleared_after_forward(ddp, optimizer)
    return optimizer.state_dict()


class Half(dict):
    """Keeps tensors in half precision."""

    def __setitem__(self, name, value):
        super().__setitem__(name, value.half())

    def get(self, name):
        return self[name].float() if name in self else None


def with_half_states(params):
    optimizer = sgd(params)
    optimizer.state = defaultdict(Half)
    return optimizer


@way(make=with_half_states)
def states_in_a_class(ddp, optimizer):
    cleared_after_forward(ddp, optimizer)
    return optimizer.state_dict()


def in_half_precision(model):
    ddp = DistributedDataParallel(model)
    ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
    return ddp


@way(
    make=lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9, nesterov=True, foreach=True),
    wrap=in_half_precision,
)
def step_writes_gradients(ddp, optimizer):
    """And the next one starts from what it left."""
    seen = []
    for iteration in range(8):
        train(ddp, optimizer)
        if iteration % 2:
            seen += [p.grad.norm().item() for p in ddp.parameters()]
        else:
            optimizer.step()
    return seen


class InMemory(torch.optim.Optimizer):
    """Goes around torch, as an extension in C++ does that gets a parameter and its gradient."""

    def __init__(self, params):
        super().__init__(params, {"lr": 0.1})
        self.arrays = []

    def step(self):
        if not self.arrays:
            for p in self.param_groups[0]["params"]:
                pair = [(ctypes.c_float * each.numel()).from_address(each.data_ptr()) for each in (p, p.grad)]
                self.arrays.append([np.ctypeslib.as_array(memory) for memory in pair])
        for param, grad in self.arrays:
            param -= np.float32(0.1) * grad


@way(make=InMemory)
def own_step_past_torch(ddp, optimizer):
    losses = []
    for _ in range(8):
        losses.append(loss_of(ddp, *batch()))
        optimizer.zero_grad(set_to_none=False)
        losses[-1].backward()
        optimizer.step()
    return losses


run_ddp()
