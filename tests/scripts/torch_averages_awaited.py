"""Averaged gradients that the script awaits and changes, as BytePS documents it: a step without a second wait."""

import byteps.torch as bps
import torch
from torch import nn
from ways import adam, backward, batch, loss_of, run_byteps, train, way


def awaited_step(optimizer, change):
    optimizer.synchronize()
    change()
    with optimizer.skip_synchronize():
        optimizer.step()


@way()
def clipped_by_norm(model, optimizer):
    seen = []
    for _ in range(6):
        optimizer.zero_grad()
        seen.append(backward(model))
        awaited_step(optimizer, lambda: seen.append(nn.utils.clip_grad_norm_(model.parameters(), 0.5)))
    return seen


@way()
def clipped_in_a_closure(model, optimizer):
    """Gradients are there before step(), which calls the closure once they are averaged."""
    norms = []
    for _ in range(6):
        optimizer.zero_grad()
        backward(model)
        optimizer.step(lambda: norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.3)))
    return norms


@way()
def awaited_after_the_step(model, optimizer):
    """By all, though only the first has touched its gradients since, for a log."""
    norms = []
    for _ in range(6):
        train(model, optimizer)
        if bps.rank() == 0:
            norms.append(nn.utils.clip_grad_norm_(model.parameters(), float("inf")))
        optimizer.synchronize()
        norms.append([p.grad.norm() for p in model.parameters()])
    return norms


@way(make=lambda params: torch.optim.Adam(params, lr=1e-3))
def clipped_by_value(model, optimizer):
    """And a learning rate that the script sets by hand in the groups."""
    for iteration in range(6):
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * (iteration + 1)
        optimizer.zero_grad()
        backward(model)
        awaited_step(optimizer, lambda: nn.utils.clip_grad_value_(model.parameters(), 0.01))


@way()
def scaled(model, optimizer):
    """The first scale is too large: one step is skipped, and the scale goes down."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, growth_interval=2)
    scales = []
    for _ in range(7):
        optimizer.zero_grad()
        scaler.scale(loss_of(lambda inputs: model(inputs) * 4, *batch())).backward()
        optimizer.synchronize()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with optimizer.skip_synchronize():
            scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    return scales


@way()
def noised(model, optimizer):
    """The same on all workers; and a hook that halves a gradient before it leaves."""
    model[2].weight.register_hook(lambda grad: grad * 0.5)
    shared = torch.Generator().manual_seed(5)

    def add_noise():
        for p in model.parameters():
            p.grad.add_(torch.randn(p.shape, generator=shared), alpha=0.01)

    for _ in range(6):
        optimizer.zero_grad()
        backward(model)
        awaited_step(optimizer, add_noise)


@way()
def noised_by_each_worker(model, optimizer):
    """Step and a second wait average once more what each worker has changed."""
    for iteration in range(6):
        optimizer.zero_grad()
        backward(model)
        optimizer.synchronize()
        for p in model.parameters():
            p.grad.add_(torch.randn(p.shape), alpha=0.01)
        if iteration % 3 == 2:
            awaited_step(optimizer, lambda: None)
        else:
            optimizer.step()


@way(compression=bps.Compression.fp16)
def clipped_and_rounded_again(model, optimizer):
    for _ in range(6):
        optimizer.zero_grad()
        backward(model)
        optimizer.synchronize()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()


@way(make=lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, nesterov=True), backward_passes_per_step=2)
def two_passes_a_step(model, optimizer):
    losses = []
    for iteration in range(12):
        losses.append(backward(model))
        if iteration % optimizer.backward_passes_per_step == 1:
            optimizer.step()
            optimizer.zero_grad()
    return losses


@way(make=adam)
def frozen_for_a_while(model, optimizer):
    """Gradients are cleared to zero, as BytePS needs there."""
    losses = []
    for iteration in range(8):
        model[0].requires_grad_(not 2 <= iteration < 5)
        model[4].requires_grad_(not 4 <= iteration < 6)
        optimizer.zero_grad(set_to_none=False)
        losses.append(backward(model))
        optimizer.step()
    return losses


@way(make=adam)
def begun_again_from_a_file(model, optimizer):
    for _ in range(4):
        train(model, optimizer)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "checkpoint.pt")
    for _ in range(2):
        train(model, optimizer)  # lost
    checkpoint = torch.load("checkpoint.pt")
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    for _ in range(4):
        train(model, optimizer)
    state = optimizer.state_dict()["state"]
    return [state[number]["exp_avg"] for number in sorted(state)]


@way()
def written_without_backward(model, optimizer):
    """Into the zeros that BytePS begins with, and for half of the parameters."""
    params = list(model.parameters())
    for _ in range(6):
        loss = loss_of(model, *batch())
        for p, grad in zip(params[:2], torch.autograd.grad(loss, params[:2], retain_graph=True), strict=True):
            p.grad.copy_(grad)
        for p in params[2:]:
            p.grad.zero_()
        loss.backward(inputs=params[2:])
        optimizer.step()


run_byteps()
