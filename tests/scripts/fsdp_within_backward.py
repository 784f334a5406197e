"""Gradients that a program reaches within backward: hooks that look at those of later modules, optimizers that step
there, and penalties on this rank's own parts of parameters, whose gradients autograd adds by itself.
"""

from itertools import pairwise

import torch
import torch.distributed as dist
from sharded import backward, layers, loss_of, parts, step, update
from torch import nn
from torch.distributed.fsdp import fully_shard
from ways import run_fsdp, way


@way(layers)
def looks(model, optimizer):
    """A module's hook looks at the gradients of another, and one at the end of the pass at all."""
    seen = []

    def at_the_end():
        seen.extend(param.grad.to_local().clone() for param in model.parameters())

    def look(module, inner, outer):
        seen.append(model[3].weight.grad.to_local().clone())
        torch.autograd.Variable._execution_engine.queue_callback(at_the_end)

    hook = model[0].register_full_backward_hook(look)
    for iteration in range(6):
        if iteration == 4:
            hook.remove()
        step(model, optimizer)
    return seen


@way(layers)
def writes(model, optimizer):
    """A module's hook writes gradients of others, or takes them away."""

    def write(module, inner, outer):
        model[3].weight.grad.to_local().mul_(0.5)
        model[2].bias.grad.mul_(0.25)
        model[1].bias.grad = None

    model[0].register_full_backward_hook(write)
    return [step(model, optimizer) for _ in range(5)]


@way(layers)
def takes(model, optimizer):
    """A module's hook takes a gradient of another away and keeps it, and gives one to a third."""
    kept = []

    def take(module, inner, outer):
        kept.append(model[3].weight.grad)
        model[3].weight.grad = None
        model[1].weight.grad = model[2].weight.grad

    model[0].register_full_backward_hook(take)
    return [step(model, optimizer) for _ in range(5)], [each.to_local() for each in kept]


@way(layers)
def penalties(model, optimizer):
    """A penalty comes first in the graph, so its gradients come last in backward; there are averages under way then."""
    losses = []
    for iteration in range(6):
        parts = [param.to_local() if iteration % 2 else param for param in model.parameters()]
        sums = [part.square().sum() for part in parts]
        penalty = 1e-2 * sum(each if iteration % 2 else each.full_tensor() for each in sums)
        losses.append(update(optimizer, loss_of(model) + penalty))
        optimizer.zero_grad(set_to_none=iteration % 3 == 0)
    return losses


@way(layers)
def steps(model, optimizer):
    """A module's hook makes a step of the modules behind it, and trains another model."""
    behind, other = torch.optim.Adam(model[2:].parameters(), lr=1e-2), layers()
    others_optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
    losses = []

    def make_steps(module, inner, outer):
        behind.step()
        with torch.enable_grad():
            losses.append(step(other, others_optimizer))
        others_optimizer.step(lambda: loss_of(other).backward())

    model[0].register_full_backward_hook(make_steps)
    losses += [step(model, optimizer) for _ in range(5)]
    return losses, [param.full_tensor() for param in other.parameters()]


def with_lists():
    """The program says what is gathered ahead."""
    chain = parts()
    for first, second in pairwise(chain):
        first.set_modules_to_forward_prefetch([second])
        second.set_modules_to_backward_prefetch([first])
    return fully_shard(nn.Sequential(*chain, nn.Linear(40, 7)))


@way(with_lists, lambda params: {param: torch.optim.SGD([param], lr=0.1, momentum=0.9) for param in params})
def stepped_at_once(model, optimizers):
    def step_at_once(param):
        optimizers[param].step()
        optimizers[param].zero_grad()

    for param in optimizers:
        param.register_post_accumulate_grad_hook(step_at_once)
    for _ in range(5):
        backward(model)


@way(with_lists)
def reductions_read(model, optimizer):
    """A hook reads what was reduced."""
    seen = []
    for layer in model[:2]:
        layer.set_all_reduce_hook(lambda grad: seen.append(grad.clone()))
    model[2].set_gradient_divide_factor(dist.get_world_size())
    for _ in range(5):
        backward(model)
        seen.extend(param.grad.to_local().clone() for param in model.parameters())
        optimizer.step()
        optimizer.zero_grad()
    return seen


run_fsdp()
