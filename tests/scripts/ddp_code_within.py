"""Code of the program's own that runs within torch's functions, and reads kept parameters, right after a step."""

import copy

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import wrap_torch_function
from torch.utils._python_dispatch import TorchDispatchMode
from ways import adam, run_ddp, train, way


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


run_ddp()
