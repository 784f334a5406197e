"""Gradients that the script looks at after the step, keeps, or clears itself."""

import numpy as np
import torch
from ways import adam, backward, batch, loss_of, run_byteps, train, way


@way()
def norms_after_the_step(model, optimizer):
    params, norms = list(model.parameters()), []
    for _ in range(6):
        train(model, optimizer)
        norms.append([p.grad.norm().item() for p in params])
    return norms


def kept(model, optimizer, keep, read):
    """Gradients that were taken once: they are cleared in place, so the tensors stay the same."""
    views, seen = None, []
    for _ in range(6):
        optimizer.zero_grad(set_to_none=False)
        backward(model)
        if views is None:
            views = [keep(p.grad) for p in model.parameters()]
        optimizer.step()
        seen.append([read(view) for view in views])
    return seen


@way()
def tensors_from_before(model, optimizer):
    return kept(model, optimizer, lambda grad: grad, lambda grad: float(grad.norm()))


@way()
def numpy_arrays_from_before(model, optimizer):
    return kept(model, optimizer, lambda grad: grad.numpy(), lambda view: np.abs(view).sum())


@way()
def cleared_by_hand(model, optimizer):
    """Over a kept list, in the two ways that tutorials show."""
    params, losses = list(model.parameters()), []
    for iteration in range(8):
        for p in params:
            if p.grad is not None:
                if iteration % 2:
                    p.grad.detach_()
                    p.grad.zero_()
                else:
                    p.grad = None
        losses.append(backward(model))
        optimizer.step()
    return losses


@way(make=adam)
def cleared_late(model, optimizer):
    """Between forward and backward, by the optimizer and by the model, or right after the step."""
    losses = []
    for iteration in range(8):
        loss = loss_of(model, *batch())
        if iteration % 3 == 0:
            optimizer.zero_grad()
        elif iteration % 3 == 1:
            model.zero_grad()
        loss.backward()
        optimizer.step()
        if iteration % 3 == 1:
            optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
    return losses


@way()
def changed_by_hooks(model, optimizer):
    """Hooks that the script adds once the optimizer is wrapped run before a gradient leaves."""
    for number, p in enumerate(model.parameters()):
        p.register_post_accumulate_grad_hook(in_place if number % 2 else replaced)
    for _ in range(6):
        train(model, optimizer)


def in_place(param):
    param.grad.mul_(0.5)


def replaced(param):
    param.grad = param.grad * 0.5


@way()
def replaced_after_they_left(model, optimizer):
    """The script finds averages in its own tensors."""
    norms = []
    for _ in range(6):
        optimizer.zero_grad()
        backward(model)
        for p in model.parameters():
            p.grad = torch.ones_like(p)
        optimizer.step()
        norms.append([float(p.grad.norm()) for p in model.parameters()])
    return norms


run_byteps()
