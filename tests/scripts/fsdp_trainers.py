"""Ways of trainers: scalers, averaged weights, norms in parts, checkpoints and threads beside training, and memory that
is kept.
"""

import asyncio
import copy
import queue
import tempfile
import threading

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from sharded import adamw, backward, layers, loss_of, step
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grad_value_, clip_grads_with_norm_, get_total_norm, parametrizations
from ways import run_fsdp, way


@way(layers, adamw)
def scaled(model, optimizer):
    """A scaler that meets an infinite loss on one rank."""
    scaler, losses = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2), []
    for iteration in range(8):
        loss = loss_of(model)
        factor = float("inf") if iteration == 3 and dist.get_rank() == 1 else 1.0
        scaler.scale(loss * factor).backward()
        scaler.unscale_(optimizer)
        if iteration % 2:
            clip_grad_value_(model.parameters(), 0.05)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses += [loss.item(), scaler.get_scale()]
    return losses


@way(layers, adamw)
def averaged(model, optimizer):
    """An average of weights, with which the model is evaluated in between."""
    mean, seen = [param.detach().clone() for param in model.parameters()], []
    for iteration in range(8):
        step(model, optimizer)
        with torch.no_grad():
            torch._foreach_lerp_(mean, [param.detach() for param in model.parameters()], 0.2)
            if iteration % 3 == 1:
                own = [param.detach().clone() for param in model.parameters()]
                for param, value in zip(model.parameters(), mean, strict=True):
                    param.copy_(value)
                seen.append(model(torch.ones(2, 40)).clone())
                model.reshard()
                for param, value in zip(model.parameters(), own, strict=True):
                    param.copy_(value)
    return seen, [each.full_tensor() for each in mean]


@way(layers)
def norms(model, optimizer):
    """Norms of each gradient are logged, and all are clipped by a norm that is had first."""
    seen = []
    for iteration in range(6):
        backward(model)
        seen += [param.grad.norm().full_tensor().item() for param in model.parameters()]
        if iteration % 2:
            norm = get_total_norm([param.grad for param in model.parameters()])
            norm = norm.full_tensor()
            clip_grads_with_norm_(model.parameters(), 0.1, norm)
            seen.append(norm.item())
        optimizer.step()
        optimizer.zero_grad()
    return seen


@way(layers, adamw)
def saved_beside(model, optimizer):
    """Checkpoints are written by a thread while the next batch computes; copies of states are kept."""
    seen = []
    folder = [tempfile.mkdtemp()]
    dist.broadcast_object_list(folder, 0)
    group = dist.new_group()
    for iteration in range(6):
        step(model, optimizer)
        if iteration % 2:
            states = {"model": model.state_dict(), "optimizer": copy.deepcopy(optimizer.state_dict())}
            saved = dcp.async_save(
                {"model": states["model"]}, checkpoint_id=f"{folder[0]}/{iteration}", process_group=group
            )
            backward(model)
            saved.result()
            optimizer.step()
            optimizer.zero_grad()
            if iteration == 3:
                dcp.load({"model": states["model"]}, checkpoint_id=f"{folder[0]}/3")
                model.load_state_dict(states["model"])
                optimizer.load_state_dict(states["optimizer"])
        seen += [param.full_tensor().sum().item() for param in model.parameters()]
    return seen


@way(layers, adamw)
def memory_renewed(model, optimizer):
    """Parameters and gradients get new memory after a step. Gradients are cleared in place before some steps."""
    losses = []
    for iteration in range(6):
        loss = loss_of(model)
        loss.backward()
        if iteration % 3 == 1:
            optimizer.zero_grad(set_to_none=False)
        optimizer.step()
        weights = [param.detach().clone() for param in model.parameters()]
        if iteration % 2:
            model.to_empty(device="cpu")
            with torch.no_grad():
                for param, value in zip(model.parameters(), weights, strict=True):
                    param.copy_(value)
        optimizer.zero_grad()
        losses += [loss.item(), step(model, optimizer)]
    return losses


@way(layers, adamw)
def read_by_a_thread(model, optimizer):
    """A thread reads what step() has changed, right after it."""
    seen = []
    for _ in range(6):
        step(model, optimizer)
        thread = threading.Thread(
            target=lambda: seen.extend(param.to_local().sum().item() for param in model.parameters())
        )
        thread.start()
        thread.join()
    return seen


@way(layers)
def backward_in_a_thread(model, optimizer):
    """A thread runs each backward pass. The main one reads gradients and weights, and makes the steps."""
    seen = []
    for _ in range(8):
        thread = threading.Thread(target=loss_of(model).backward)
        thread.start()
        thread.join()
        seen += [param.grad.to_local().double().sum().item() for param in model.parameters()]
        optimizer.step()
        seen += [param.detach().to_local().double().sum().item() for param in model.parameters()]
        optimizer.zero_grad()
    return seen


@way(layers, adamw)
def trained_in_a_thread(model, optimizer):
    """Threads make each step for an event loop, which then reads weights and gradients. An earlier one reads, too."""
    weights, seen = [param.to_local() for param in model.parameters()], []
    asked, answers = queue.SimpleQueue(), queue.SimpleQueue()

    def read():
        while asked.get():
            answers.put([part.sum().item() for part in weights])

    def train():
        backward(model)
        optimizer.step()

    async def trains():
        for _ in range(6):
            await asyncio.to_thread(train)
            seen.extend(param.grad.to_local().sum().item() for param in model.parameters())
            seen.extend(part.sum().item() for part in weights)
            await asyncio.to_thread(train)
            asked.put(True)
            seen.extend(answers.get())
            optimizer.zero_grad()

    reader = threading.Thread(target=read)
    reader.start()
    asyncio.run(trains())
    asked.put(False)
    reader.join()
    return seen


@way(layers, adamw)
def others_trained_beside(model, optimizer):
    """Within backward another thread trains a small model of its own, on one rank."""
    small = nn.Linear(4, 4)

    def train(*_):
        if dist.get_rank() == 0:
            thread = threading.Thread(target=small(torch.ones(2, 4)).sum().backward)
            thread.start()
            thread.join()

    model[2].register_full_backward_hook(train)
    return [step(model, optimizer) for _ in range(6)]


@way(layers)
def memory_kept(model, optimizer):
    """This rank's parts of weights and gradients are kept: as tensors, in DTensors of the program's own, and as arrays
    that torch does not see.
    """
    weights = [param.to_local() for param in model.parameters()]
    seen = []
    for _ in range(5):
        step(model, optimizer)
        seen += [part.sum().item() for part in weights]
    whole = [DTensor.from_local(param.to_local(), param.device_mesh, param.placements) for param in model.parameters()]
    for _ in range(5):
        step(model, optimizer)
        seen += [tensor.norm().full_tensor().item() for tensor in whole]
    arrays = [part.detach().numpy() for part in weights]
    for _ in range(5):
        step(model, optimizer)
        seen += [float(array.sum()) for array in arrays]
    return seen


@way(layers)
def gradients_kept(model, optimizer):
    """Arrays in the memory of gradients are kept over backward passes that add to them."""
    seen = []
    backward(model)
    arrays = [param.grad.to_local().numpy() for param in model.parameters()]
    for iteration in range(6):
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        backward(model)
        seen += [float(array.sum()) for array in arrays]
        if iteration % 2:
            for array in arrays:
                array *= 0.5
    return seen


@way(layers, adamw)
def state_kept(model, optimizer):
    """Moments of the optimizer are kept, as tensors and as arrays, and read after steps."""
    seen = []
    for _ in range(3):
        step(model, optimizer)
    moments = [optimizer.state[param]["exp_avg"].to_local() for param in model.parameters()]
    for _ in range(3):
        step(model, optimizer)
        seen += [moment.sum().item() for moment in moments]
    arrays = [moment.numpy() for moment in moments]
    for _ in range(3):
        step(model, optimizer)
        seen += [float(array.sum()) for array in arrays]
    return seen


@way(layers, lambda params: torch.optim.SGD(params, lr=0.1, fused=True))
def refused(model, optimizer):
    """The optimizer refuses parts of parameters in its first step, so another makes it."""
    losses, refusals = [], 0
    for _ in range(5):
        losses.append(loss_of(model))
        losses[-1].backward()
        try:
            optimizer.step()
        except NotImplementedError:
            refusals += 1
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            optimizer.step()
        optimizer.zero_grad()
    return losses, refusals


@way(layers)
def several_losses(model, optimizer):
    """Two losses of one forward pass, each with a backward pass of its own; a schedule of rate and momentum."""
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=7, cycle_momentum=True)
    losses = []
    for _ in range(6):
        outputs = model(torch.randn(8, 40))
        first, second = outputs.square().mean(), outputs.logsumexp(1).mean()
        first.backward(retain_graph=True)
        second.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses += [first.item(), second.item()]
    return losses


@way(lambda: layers(wrap=parametrizations.weight_norm), adamw)
def parametrized(model, optimizer):
    """Weights are made of a direction and a length."""
    return [step(model, optimizer) for _ in range(6)]


@way(layers, lambda params: torch.optim.AdamW(list(params)[:4], lr=1e-2))
def groups_added(model, optimizer):
    """Parameters come to the optimizer while it trains, with a rate of their own that is changed in place."""
    losses = []
    for iteration in range(8):
        if iteration == 3:
            optimizer.add_param_group({"params": list(model.parameters())[4:], "lr": 1e-3})
        if iteration > 4:
            optimizer.param_groups[-1]["lr"] *= 2
        losses.append(step(model, optimizer))
        model.zero_grad()
    return losses


run_fsdp()
