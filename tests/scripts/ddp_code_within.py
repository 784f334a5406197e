"""Code of the program's own that runs within torch's functions right after a step, or at the end of backward."""

import copy

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import wrap_torch_function
from torch.utils._python_dispatch import TorchDispatchMode
from ways import adam, backward, run_ddp, train, way


class Holder:
    def __init__(self, tensor):
        self.tensor = tensor

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return func([each.tensor for each in args[0]], **(kwargs or {}))


class Calls(TorchDispatchMode):
    def __init__(self, read):
        self.read = read
        super().__init__()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.read()
        return func(*args, **(kwargs or {}))


def read_after_each_step(ddp, optimizer, read):
    """Have `read` read kept parameters."""
    kept = [param.data for param in ddp.parameters()]
    seen = []
    for _ in range(8):
        train(ddp, optimizer)
        read(kept, seen)
    return seen


@way(make=adam)
def objects(ddp, optimizer):
    return read_after_each_step(
        ddp, optimizer, lambda kept, seen: seen.append(torch.stack([Holder(kept[4]), Holder(kept[4])]))
    )


@way(make=adam)
def own_function(ddp, optimizer):
    """Which objects of others may override."""

    def read(kept, seen):
        function = wrap_torch_function(lambda inputs: (inputs,))(lambda inputs: inputs @ kept[4])
        seen.append(function(torch.ones(10)))

    return read_after_each_step(ddp, optimizer, read)


@way(make=adam)
def mode(ddp, optimizer):
    def read(kept, seen):
        with Calls(lambda: seen.append(kept[4].sum().item())):
            torch.ones(1)

    return read_after_each_step(ddp, optimizer, read)


@way(make=adam)
def hooks(ddp, optimizer):
    """For what forward saves."""

    def read(kept, seen):
        def pack(tensor):
            seen.append(kept[4].sum().item())
            return tensor

        with saved_tensors_hooks(pack, lambda tensor: tensor):
            torch.ones(1, requires_grad=True).square()

    return read_after_each_step(ddp, optimizer, read)


@way(make=adam)
def attributes(ddp, optimizer):
    """Of a tensor that is copied."""
    tensor = torch.ones(1)

    def read(kept, seen):
        tensor.kept = kept[4]
        seen.append(copy.deepcopy(tensor).kept)

    return read_after_each_step(ddp, optimizer, read)


@way(make=adam)
def for_each_element(ddp, optimizer):
    return read_after_each_step(
        ddp, optimizer, lambda kept, seen: seen.append(torch.ones(1).apply_(lambda value: value + kept[4][0, 0].item()))
    )


@way(make=adam)
def without_overrides(ddp, optimizer):
    def read(kept, seen):
        with torch._C.DisableTorchFunction():
            seen.append(kept[4].sum())

    return read_after_each_step(ddp, optimizer, read)


def queue(callback):
    torch.autograd.Variable._execution_engine.queue_callback(callback)


def at_the_end(ddp, callback):
    """Call `callback` at the end of each backward pass, after all that is queued within it."""
    last = next(ddp.parameters())
    last.register_post_accumulate_grad_hook(lambda _: queue(lambda: queue(callback)))


@way(make=adam)
def gradients_read(ddp, optimizer):
    """And before the averages are there, in a callback that was queued first."""
    params, seen = list(ddp.parameters()), []

    def look():
        seen.extend(p.grad.sum().item() for p in params)

    params[-1].register_post_accumulate_grad_hook(lambda _: queue(look))
    at_the_end(ddp, look)
    return [train(ddp, optimizer) for _ in range(6)], seen


@way()
def gradients_written(ddp, optimizer):
    def clip():
        for p in ddp.parameters():
            p.grad.clamp_(-0.01, 0.01)

    at_the_end(ddp, clip)
    return [train(ddp, optimizer) for _ in range(6)]


@way(make=adam)
def stepped(ddp, optimizer):
    at_the_end(ddp, optimizer.step)
    losses = []
    for _ in range(6):
        optimizer.zero_grad()
        losses.append(backward(ddp))
    return losses, optimizer.state_dict()


@way()
def stepped_after_a_node(ddp, optimizer):
    """By a hook of the node that adds to `.grad`, which comes after the reducer's."""
    first = next(ddp.parameters())
    node = first.view_as(first).grad_fn.next_functions[0][0]
    node.register_hook(lambda *_: queue(optimizer.step))
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        losses.append(backward(ddp))
    return losses


run_ddp()
