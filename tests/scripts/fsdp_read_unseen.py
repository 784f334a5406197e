"""Graphs with parts of weights, gradients and moments, whose backward pass comes after a step or another pass; writes
in place, and reads on one rank alone, of parameters that are gathered ahead; and a step that raises.
"""

import torch
import torch.distributed as dist
from sharded import backward, layers, loss_of, step
from torch import nn
from ways import adam, run_fsdp, way


@way(layers)
def weight_in_a_graph(model, optimizer):
    seen = []
    for _ in range(4):
        penalty = model[1].weight.to_local().square().sum()
        step(model, optimizer)
        penalty.backward()
        seen.append(model[1].weight.grad.to_local().clone())
        optimizer.zero_grad()
    return seen


@way(layers, adam)
def moment_in_a_graph(model, optimizer):
    seen, factor = [], torch.ones(20, 40, requires_grad=True)
    step(model, optimizer)
    for _ in range(4):
        total = (optimizer.state[model[1].weight]["exp_avg"].to_local() * factor).sum()
        step(model, optimizer)
        total.backward()
        seen.append(factor.grad)
        factor.grad = None
    return seen


@way(layers, lambda params: torch.optim.SGD(params, lr=0.1))
def penalties_into_gradients(model, optimizer):
    """Leaves with this rank's parts of weights have the memory of the gradients as theirs."""
    params = list(model.parameters())
    leaves = [param.to_local().detach().requires_grad_() for param in params]
    for param, leaf in zip(params, leaves, strict=True):
        param.grad = torch.zeros_like(param)
        leaf.grad = param.grad.to_local()
    losses = []
    for _ in range(4):
        losses.append(loss_of(model))
        losses[-1].backward()
        sum(leaf.square().sum() for leaf in leaves).mul(1e-2).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
    return losses


@way(layers)
def gradient_in_a_graph(model, optimizer):
    seen, factor = [], torch.ones(20, 40, requires_grad=True)
    for _ in range(4):
        backward(model)
        total = (model[1].weight.grad.to_local().data * factor).sum()
        backward(model)
        total.backward()
        seen.append(factor.grad.nan_to_num())
        factor.grad = None
        optimizer.step()
        optimizer.zero_grad()
    return seen


class Clipping(nn.Sequential):
    def forward(self, values):
        values = self[0](values)
        with torch.no_grad():
            nn.functional.hardtanh(self[2].weight.to_local(), -0.05, 0.05, inplace=True)
        return self[4](self[3](self[2](self[1](values))))


@way(lambda: layers(Clipping))
def written_in_place(model, optimizer):
    return [step(model, optimizer) for _ in range(4)]


@way(layers)
def logged_on_one_rank(model, optimizer):
    buffer = torch.zeros(20, 40)

    def log(*_):
        if dist.get_rank() == 0:
            with torch.no_grad():
                buffer.copy_(model[2].weight.to_local())

    model[1].register_forward_hook(log)
    return [step(model, optimizer) for _ in range(4)], buffer


@way(layers, lambda params: torch.optim.AdamW(params, lr=1e-2, foreach=True))
def error_in_a_later_step(model, optimizer):
    """A rate of this kind is refused."""
    seen = []
    for iteration in range(5):
        backward(model)
        optimizer.param_groups[0]["lr"] = torch.tensor(1e-2) if iteration == 3 else 1e-2
        try:
            optimizer.step()
        except RuntimeError as error:
            seen.append(str(error))
        optimizer.zero_grad()
    return seen, loss_of(model)


run_fsdp()
