"""Gradients that the script keeps, looks at by other means, clears late or changes in hooks."""

import contextlib

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from ways import adam, backward, batch, classifier, loss_of, run_ddp, train, way


@way(make=adam)
def references(ddp, optimizer):
    """From before step() and zero_grad(), read after the next pass has begun."""
    history = []
    for _ in range(8):
        backward(ddp)
        history.append([p.grad for p in ddp.parameters()])
        optimizer.step()
        optimizer.zero_grad()
    return [grad.double().sum().item() for grads in history for grad in grads]


@way()
def numpy_arrays(ddp, optimizer):
    """They share the gradients' memory, and are made once and read after each backward pass."""
    views, read = [], []
    for iteration in range(8):
        optimizer.zero_grad(set_to_none=False)
        backward(ddp)
        if iteration == 1:  # One that torch writes and another library reads, too.
            params = enumerate(ddp.parameters())
            views = [np.from_dlpack(p.grad) if place % 2 else p.grad.numpy() for place, p in params]
        read.append([np.abs(view).sum() for view in views])
        optimizer.step()
    return read


def small(p):
    p.grad.clamp_(-0.01, 0.01)


def twice(p):
    p.grad.mul_(2)


def hooked():
    """Hooks on gradients before the module is wrapped."""
    model = classifier()
    model[0].weight.register_hook(lambda grad: grad * 0.5)
    model[2].weight.register_post_accumulate_grad_hook(small)
    return model


@way(hooked)
def hooks(ddp, optimizer):
    """And after that."""
    model, seen = ddp.module, []
    model[2].bias.register_hook(lambda grad: grad.clamp(-0.02, 0.02))
    model[0].bias.register_post_accumulate_grad_hook(twice)
    model[4].weight.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.sum().item()))
    model[4].bias.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", torch.sign(p.grad)))
    for _ in range(8):
        train(ddp, optimizer)
    return seen, optimizer.state_dict()


@way(hooked)
def hooks_cleared(ddp, optimizer):
    """All of them at once, while gradients accumulate; and new ones that read `.grad`."""
    losses, seen = [], []
    for iteration in range(10):
        for p in ddp.parameters():
            if p._backward_hooks:
                p._backward_hooks.clear()
            if iteration > 5:
                p.register_hook(lambda _, p=p: seen.append(p.grad is not None and p.grad.sum().item()))
        losses += [backward(ddp), backward(ddp)]
        optimizer.step()
        if iteration % 3 == 2:
            optimizer.zero_grad(set_to_none=iteration < 5)
    return losses, seen


@way(make=lambda params: torch.optim.SGD(params, lr=0.05))
def second_pass(ddp, optimizer):
    """Through the same graph, which torch averages no more."""
    grads = []
    for iteration in range(6):
        inputs, labels = batch()
        optimizer.zero_grad()
        outputs = ddp(inputs)
        torch.nn.functional.cross_entropy(outputs, labels).backward(retain_graph=True)
        if iteration % 2:
            outputs.square().mean().backward()
        grads += [p.grad.sum() for p in ddp.parameters()]
        for p in ddp.parameters():
            dist.all_reduce(p.grad)
        optimizer.step()
    return grads


@way(make=lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, weight_decay=0.01))
def cleared_late(ddp, optimizer):
    """After the forward pass, between backward and step, and by the module."""
    for iteration in range(12):
        loss = loss_of(ddp, *batch())
        if iteration % 3 == 0:
            optimizer.zero_grad(set_to_none=False)
        elif iteration % 3 == 1:
            ddp.zero_grad()
        else:
            ddp.module.zero_grad(set_to_none=False)
        loss.backward()
        if iteration % 4 == 2:
            optimizer.zero_grad(set_to_none=iteration % 8 == 2)
        optimizer.step()
    return optimizer.state_dict()


@way()
def parts_of_other_memory(ddp, optimizer):
    """Gradients are put in place for one pass each, and only the memory below them is read after that."""
    params, sums = list(ddp.parameters()), []
    memory = [torch.empty_like(p) for p in params]
    for iteration in range(8):
        for p, own in zip(params, memory, strict=True):
            p.grad = own.zero_().view_as(p) if iteration % 2 else own.zero_().detach()
        backward(ddp)
        if iteration % 4 < 2:
            optimizer.step()
        optimizer.zero_grad()
        sums.append([own.sum().item() for own in memory])
    return sums


@way(gradient_as_bucket_view=True)
def memory_of_buckets(ddp, optimizer):
    """Other tensors and arrays in the memory of one pass, which has the averages of each later pass."""
    sums, kept = [], []
    for iteration in range(8):
        train(ddp, optimizer)
        sums.append([float(each.sum()) for each in kept])
        if iteration == 2:
            weight, bias, *others = (p.grad for p in ddp.parameters())
            kept = [weight.numpy(), bias.detach(), *(grad.data for grad in others)]
            del weight, bias, others
    return sums


def of_first_buckets(ddp, optimizer):
    """Gradients, and arrays in their memory, from before torch rebuilds its buckets, which moves the gradients."""
    sums, kept = [], []
    for iteration in range(8):
        optimizer.zero_grad(set_to_none=False)
        with ddp.no_sync() if iteration == 2 else contextlib.nullcontext():
            backward(ddp)
        if iteration == 2:
            backward(ddp)
        if iteration == 0:
            kept = [p.grad.numpy() if place % 2 else p.grad for place, p in enumerate(ddp.parameters())]
        sums.append([float(each.sum()) for each in kept])
        optimizer.step()
    return sums


way(gradient_as_bucket_view=True)(of_first_buckets)


@way(gradient_as_bucket_view=True, static_graph=True)
def of_first_buckets_static(ddp, optimizer):
    return of_first_buckets(ddp, optimizer)


@way(gradient_as_bucket_view=True)
def of_own_passes(ddp, optimizer):
    """Gradients from before torch puts them into its bucket, which stay this rank's own."""
    params, sums, kept = list(ddp.parameters()), [], []
    params[0].register_post_accumulate_grad_hook(lambda param: kept.append(param.grad))
    for iteration in range(12):
        optimizer.zero_grad()
        if iteration % 3 == 1:
            with ddp.no_sync():
                backward(ddp)
            kept += [param.grad if place % 2 else param.grad.detach() for place, param in enumerate(params)]
        elif iteration % 3 == 2:
            for param in params[1:]:
                param.grad = torch.ones_like(param)
            kept += [param.grad for param in params[1:]]
        backward(ddp)
        sums.append([float(each.sum()) for each in kept])
        optimizer.step()
        kept = kept[-12:]
    return sums


def unfinished_rounds(ddp, optimizer):
    """Gradients of a pass over half of the parameters, scaled in torch's bucket. The last pass stays alone."""
    params, seen = list(ddp.parameters()), []
    for iteration in range(17):
        optimizer.zero_grad(set_to_none=iteration % 2 == 0)
        loss = loss_of(ddp, *batch())
        loss.backward(inputs=params[:3], retain_graph=True)
        seen.append([p.grad.sum().item() for p in params if p.grad is not None])
        if iteration < 16:
            loss.backward(inputs=params[3:])
            optimizer.step()
    return seen


way(gradient_as_bucket_view=True)(unfinished_rounds)


@way(gradient_as_bucket_view=True, find_unused_parameters=True)
def unfinished_rounds_of_some(ddp, optimizer):
    return unfinished_rounds(ddp, optimizer)


class Parts(nn.Module):
    """Layers, of which a pass uses one."""

    def __init__(self):
        super().__init__()
        self.layers, self.used = nn.ModuleList(nn.Linear(32, 10) for _ in range(3)), 0

    def forward(self, inputs):
        return self.layers[self.used](inputs)


def of_unused(ddp, optimizer):
    """The memory of gradients of which ranks have different ones, some only within no_sync()."""
    rank, sums, kept = dist.get_rank(), [], []
    for iteration in range(12):
        optimizer.zero_grad()
        if iteration % 4 == 3:
            ddp.module.used = 2
            with ddp.no_sync():
                backward(ddp)
        ddp.module.used = rank if ddp.static_graph else iteration * (1 + rank) % 3
        backward(ddp)
        if iteration in {1, 4}:
            kept += [p.grad for p in ddp.parameters() if p.grad is not None]
        sums.append([each.sum().item() for each in kept])
        optimizer.step()
    return sums


way(Parts, gradient_as_bucket_view=True, find_unused_parameters=True)(of_unused)


@way(Parts, gradient_as_bucket_view=True, static_graph=True)
def of_unused_static(ddp, optimizer):
    return of_unused(ddp, optimizer)


@way(static_graph=True)
def taken_by_a_hook(ddp, optimizer):
    """In a static graph, the parameter gets zeros."""
    grads = []
    for iteration in range(6):
        if iteration == 3:
            ddp.module[0].bias.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", None))
        train(ddp, optimizer)
        grads.append([p.grad.sum().item() for p in ddp.parameters()])
    return grads


run_ddp()
