"""Other things a program does around its steps: collectives, copies, errors it catches, layers thawed one by one."""

import contextlib
import copy
import io

import torch
import torch.distributed as dist
from torch import nn
from ways import backward, batch, run_ddp, way


@way()
def collectives(ddp, optimizer):
    """Collectives on gradients and parameters, right after backward and after step."""
    params, seen = list(ddp.parameters()), []
    kept = [p.data for p in params]
    for iteration in range(14):
        optimizer.zero_grad()
        backward(ddp)
        if iteration % 7 == 1:
            # Past torch.distributed's own functions, as wrappers of a process group do it.
            for p in params[::2]:
                dist.group.WORLD.allreduce([p.grad]).wait()
            dist.group.WORLD.broadcast(params[1].grad, 1).wait()
            dist.group.WORLD._get_backend(params[3].device).allreduce([params[3].grad]).wait()
        elif iteration % 7 == 2:
            for p in params:
                dist.all_reduce(p.grad, op=dist.ReduceOp.MAX)
        elif iteration % 7 == 3:
            for work in [dist.broadcast(p.grad, 1, async_op=True) for p in params]:
                work.wait()
        elif iteration % 7 == 4:
            every = [torch.empty_like(params[2]) for _ in range(2)]
            dist.all_gather(every, params[2].grad)
            seen += [each.sum().item() for each in every]
        optimizer.step()
        if iteration % 7 == 5:
            for p in params:
                dist.broadcast(p.detach() if p.ndim > 1 else p.data, 0)
            with torch.no_grad():
                dist.reduce(params[1], 0, op=dist.ReduceOp.MIN)
                dist.broadcast(params[1], 0)
        elif iteration % 7 == 6:
            if dist.get_rank():
                dist.send(params[3], 0)
            else:
                received = torch.empty_like(params[3])
                dist.recv(received, 1)
                seen.append(received.sum().item())
            dist.group.WORLD.allreduce([kept[4]]).wait()
            kept[4] /= 2
            seen += [p.sum().item() for p in params[: 3 * dist.get_rank()]]
            dist._broadcast_coalesced(dist.group.WORLD, kept, 1 << 20, 1)
            gathered = [None, None]
            dist.all_gather_object(gathered, params[5])
            seen += [each.sum().item() for each in gathered]
    return seen, optimizer.state_dict()


@way()
def copies(ddp, optimizer):
    """Deep copies of the module, of the wrapper and of the optimizer, and an average that follows the weights."""
    model, seen = ddp.module, []
    average = copy.deepcopy(model).requires_grad_(False)
    for iteration in range(8):
        optimizer.zero_grad()
        backward(ddp)
        if iteration == 3:
            seen.append([p.grad for p in copy.deepcopy(model).parameters()])
        optimizer.step()
        with torch.no_grad():
            if iteration % 2:
                for ours, theirs in zip(average.parameters(), model.parameters(), strict=True):
                    ours.lerp_(theirs, 0.1)
            else:
                torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 0.1)
        if iteration == 5:
            seen += [copy.deepcopy(model), copy.deepcopy(optimizer).state_dict()]
            twin = copy.deepcopy(ddp)
            buffer = io.BytesIO()
            torch.save(ddp, buffer)
            buffer.seek(0)
            loaded = torch.load(buffer, weights_only=False)
    other = torch.optim.SGD([*twin.parameters(), *loaded.parameters()], lr=0.1)
    for _ in range(3):
        backward(twin)
        backward(loaded)
        other.step()
    return average, twin, loaded, seen


class Picky(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(32, 96), nn.Linear(96, 10)

    def forward(self, inputs):
        hidden = self.first(inputs)
        if inputs[0, 0] == 9:
            raise ValueError("not this one")
        return self.last(hidden.relu())


@way(Picky)
def errors(ddp, optimizer):
    """Errors within a step that the script catches: in forward, before the loss, and before the optimizer's step."""
    caught, losses = [], []
    for iteration in range(12):
        inputs, labels = batch()
        if iteration in (3, 7):
            inputs[0, 0] = 9
        optimizer.zero_grad()
        try:
            outputs = ddp(inputs)
            if iteration == 5:
                raise KeyError("between forward and backward")
            loss = nn.functional.cross_entropy(outputs, labels)
            loss.backward()
            if iteration == 9:
                raise RuntimeError("before the step")
            optimizer.step()
            losses.append(loss.item())
        except (ValueError, KeyError, RuntimeError) as error:
            caught.append(str(error))
    return losses, caught, len(caught)


class Thawing(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(32, 64), nn.Linear(64, 64), nn.Linear(64, 10)])
        self.empty = nn.Parameter(torch.empty(0, 4))

    def forward(self, inputs):
        hidden = inputs + self.empty.sum()
        for layer in self.layers:
            hidden = layer(hidden).relu()
        return hidden


def of_the_last(params):
    *others, weight, bias = list(params)
    return torch.optim.AdamW([weight, bias, others[0]], lr=1e-2)  # the empty parameter is registered first


@way(Thawing, of_the_last, find_unused_parameters=True)
def thawed_one_after_another(ddp, optimizer):
    """Each layer is added to the optimizer when it is thawed; one parameter has no elements."""
    model, losses = ddp.module, []
    model.layers[:2].requires_grad_(False)
    for iteration in range(12):
        if iteration in (4, 8):
            layer = model.layers[1 if iteration == 4 else 0].requires_grad_(True)
            optimizer.add_param_group({"params": layer.parameters(), "lr": 1e-3})
        if iteration == 10:
            optimizer.param_groups[0]["lr"] = 0.1
            optimizer.param_groups[1]["params"] = optimizer.param_groups[1]["params"][:1]
        losses.append(backward(ddp))
        optimizer.step()
        optimizer.zero_grad()
    return losses, [group["lr"] for group in optimizer.param_groups]


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.first, self.second = nn.Linear(32, 64), nn.Linear(64, 10), nn.Linear(64, 10)
        self.third = nn.Linear(64, 10)

    def forward(self, inputs, which):
        hidden = self.stem(inputs).relu()
        return {"logits": (self.first, self.second)[which](hidden), "other": self.third(hidden)}


@way(Branches, find_unused_parameters=True)
def unused_in_the_pass_that_averages(ddp, optimizer):
    """Parameters used within no_sync() but not in the pass that averages, and outputs that are not in the loss."""
    absent, grads = [], []
    for iteration in range(8):
        optimizer.zero_grad()
        for part in range(2):
            inputs, labels = batch()
            with ddp.no_sync() if part == 0 else contextlib.nullcontext():
                which = part if iteration % 2 else (part + dist.get_rank()) % 2
                outputs = ddp(inputs, which if iteration != 6 else 0)
                loss = nn.functional.cross_entropy(outputs["logits"], labels)
                if iteration in (3, 4) and dist.get_rank() == part:
                    loss = loss + outputs["other"].square().mean()
                if iteration == 5 and part == 0:
                    loss = outputs["other"].square().mean()
                loss.backward()
        absent.append([p.grad is None for p in ddp.parameters()])
        grads += [p.grad.clone() for p in ddp.parameters() if p.grad is not None]
        optimizer.step()
    return absent, grads, optimizer.state_dict()


run_ddp()
