"""The wrapper's options, and what was there before the module is wrapped. Backends are left to torch: gloo."""

import copy
import itertools
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd import backward as run_backward
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel
from ways import adam, backward, classifier, loss_of, run_ddp, sgd, train, way

alone = []


def after_uneven_groups():
    """Ranks are members of different numbers of groups before the first module is wrapped."""
    alone.append(dist.new_group([0]))
    return classifier()


@way(after_uneven_groups)
def uneven_groups(ddp, optimizer):
    losses = []
    for _ in range(6):
        losses.append(train(ddp, optimizer))
        if dist.get_rank() == 0:
            dist.barrier(alone[0])
    return losses


@way(wrap=lambda model: DistributedDataParallel(model, process_group=dist.new_group()))
def group_of_all(ddp, optimizer):
    return [train(ddp, optimizer) for _ in range(6)]


@way(wrap=lambda model: DistributedDataParallel(model, device_mesh=init_device_mesh("cpu", (2,))))
def mesh(ddp, optimizer):
    """In the place of a process group."""
    return [train(ddp, optimizer) for _ in range(7)]


def in_part_of_a_mesh(model):
    whole = init_device_mesh("cpu", (2, 1), mesh_dim_names=("dp", "tp"))
    return DistributedDataParallel(model, device_mesh=whole["dp"])


@way(wrap=in_part_of_a_mesh)
def mesh_of_two_dimensions(ddp, optimizer):
    return [train(ddp, optimizer) for _ in range(7)]


before = []


def optimizer_first(model):
    before.append(torch.optim.AdamW(model.parameters(), lr=1e-2))
    before.append(torch.optim.lr_scheduler.OneCycleLR(before[0], 0.05, total_steps=10))
    return DistributedDataParallel(model)


@way(wrap=optimizer_first, make=lambda _: before[0])
def optimizer_made_before(ddp, optimizer):
    """And its schedule, as Accelerate does."""
    losses = []
    for _ in range(10):
        losses.append(backward(ddp))
        optimizer.step()
        before[1].step()
        optimizer.zero_grad()
    return losses, optimizer.state_dict()


class Transparent(DistributedDataParallel):
    """A class of its own, through which the module's attributes are seen."""

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.module, name)


class Model(nn.Sequential):
    classes = 10


@way(lambda: Model(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 10)), wrap=Transparent)
def subclass(ddp, optimizer):
    """And backward by name."""
    norms = []
    for _ in range(8):
        optimizer.zero_grad()
        run_backward(loss_of(ddp, torch.randn(16, 32), torch.randint(ddp.classes, (16,))))
        norms.append(ddp.module[0].weight.grad.norm().item())
        optimizer.step()
    return norms


def with_options(number, **options):
    def train_and_look(ddp, optimizer):
        grads = []
        for iteration in range(6):
            backward(ddp)
            if iteration == 3:
                nn.utils.clip_grad_norm_(ddp.parameters(), 0.1)
            grads += [p.grad.sum() for p in ddp.parameters()] if iteration == 4 else []
            optimizer.step()
            optimizer.zero_grad(set_to_none=iteration % 2 == 0)
        return grads

    train_and_look.__name__ = f"options_{number}"
    way(make=adam, **options)(train_and_look)


with_options(1, bucket_cap_mb=0.01)
with_options(2, gradient_as_bucket_view=True)
with_options(3, gradient_as_bucket_view=True, find_unused_parameters=True)
with_options(4, gradient_as_bucket_view=True, static_graph=True)
with_options(5, init_sync=False)


@way(find_unused_parameters=True)
def warnings_are_errors(ddp, optimizer):
    with warnings.catch_warnings(action="error"):
        return [train(ddp, optimizer) for _ in range(5)]


def some_ignored(model):
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ["0.weight", "4.bias"])
    return DistributedDataParallel(model)


@way(wrap=some_ignored)
def ignored_parameters(ddp, optimizer):
    """They differ among the ranks."""
    ignored = [ddp.module[0].weight, ddp.module[4].bias]
    start = [p.detach().clone() for p in ignored]
    for _ in range(5):
        train(ddp, optimizer)
    own = [p.detach().clone() for p in ignored]
    with torch.no_grad():
        for p, value in zip(ignored, start, strict=True):
            p.copy_(value)
    return own


@way(make=lambda _: None, wrap=lambda model: model)
def wrapped_again(model, _):
    """While the first wrapper lives, and after it is gone; and a part of the module."""
    losses, states = [], []

    def some_steps(ddp):
        optimizer = adam(ddp.parameters())
        losses.extend(train(ddp, optimizer) for _ in range(4))
        states.append(optimizer.state_dict())

    first = DistributedDataParallel(model)
    some_steps(first)
    second = DistributedDataParallel(model)
    some_steps(second)
    some_steps(second)
    del first, second
    some_steps(DistributedDataParallel(model, find_unused_parameters=True))
    half = DistributedDataParallel(nn.Sequential(*list(model)[:3]))
    optimizer = torch.optim.SGD(half.parameters(), lr=0.1)
    for _ in range(4):
        optimizer.zero_grad()
        half(torch.randn(16, 32)).square().mean().backward()
        optimizer.step()
    return losses, states


@way(make=lambda _: None, wrap=lambda model: model)
def wrapped_for_each_epoch(model, _):
    """With one optimizer. Parameters alone are kept, and looked at when all else is gone."""
    kept = []
    makes = (
        sgd,
        lambda params: torch.optim.AdamW(params, lr=1e-2),
        lambda params: torch.optim.RMSprop(params, lr=1e-3),
    )
    for make, epochs in itertools.product(makes, (1, 3)):
        own = copy.deepcopy(model)
        kept.append(list(own.parameters()))
        optimizer = make(kept[-1])
        for _ in range(epochs):
            ddp = DistributedDataParallel(own)
            for _ in range(4):
                train(ddp, optimizer)
        del own, ddp, optimizer
    return kept


run_ddp(backend=None)
