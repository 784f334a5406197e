"""Communication hooks of torch, registered in the ways that its pages show."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import debugging_hooks, default_hooks, powerSGD_hook
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn.parallel import DistributedDataParallel
from ways import adam, backward, batch, loss_of, run_ddp, sgd, train, way

FP16 = default_hooks.fp16_compress_hook


def registered(hook, state=lambda: None, **options):
    """Return what wraps a module and registers `hook` with what `state` returns."""

    def wrap(model):
        ddp = DistributedDataParallel(model, **options)
        ddp.register_comm_hook(state(), hook)
        return ddp

    return wrap


def of_buckets(ddp, optimizer):
    """Results depend on buckets, or a hook is around one whose do not."""
    losses = []
    for iteration in range(7):
        inputs, labels = batch()
        optimizer.zero_grad()
        if iteration == 3:
            with ddp.no_sync():
                loss_of(ddp, inputs[:8], labels[:8]).backward()
        loss = loss_of(ddp, inputs, labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@way(
    make=adam,
    wrap=registered(
        default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook), lambda: dist.group.WORLD, bucket_cap_mb=0.02
    ),
)
def wrapper_around_all_reduce(ddp, optimizer):
    return of_buckets(ddp, optimizer)


@way(make=adam, wrap=registered(default_hooks.fp16_compress_wrapper(FP16), bucket_cap_mb=0.02))
def wrapper_around_half_precision(ddp, optimizer):
    return of_buckets(ddp, optimizer)


@way(make=adam, wrap=registered(debugging_hooks.noop_hook, bucket_cap_mb=0.02))
def no_averages(ddp, optimizer):
    torch.manual_seed(100)  # so that ranks stay alike
    return of_buckets(ddp, optimizer)


def gradients_looked_at(ddp, optimizer):
    grads = []
    for iteration in range(7):
        optimizer.zero_grad()
        backward(ddp)
        if iteration == 5:
            grads += [p.grad.clone() for p in ddp.parameters()]
        optimizer.step()
    return grads


@way(make=adam, wrap=registered(FP16))
def half_precision(ddp, optimizer):
    return gradients_looked_at(ddp, optimizer)


@way(make=adam, wrap=registered(FP16, lambda: dist.group.WORLD, find_unused_parameters=True))
def half_precision_in_a_group(ddp, optimizer):
    return gradients_looked_at(ddp, optimizer)


@way(wrap=registered(default_hooks.allreduce_hook, lambda: dist.group.WORLD))
def all_reduce(ddp, optimizer):
    """And a hook that torch refuses."""
    losses = [train(ddp, optimizer) for _ in range(4)]
    try:
        DistributedDataParallel(nn.Linear(3, 3)).register_comm_hook(None, default_hooks.bf16_compress_hook)
    except TypeError as error:
        return losses, str(error)


def power_sgd():
    return powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=3)


@way(wrap=registered(powerSGD_hook.powerSGD_hook, power_sgd))
def powersgd(ddp, optimizer):
    """Its state is that of torch's buckets: its second all-reduce depends on the first."""
    return [train(ddp, optimizer) for _ in range(7)]


def local_sgd(still_averages):
    """After some steps gradients are averaged in a part of the ranks, if at all, and weights now and then."""

    def state():
        alone, _ = dist.new_subgroups(group_size=1)
        return PostLocalSGDState(None, alone, start_localSGD_iter=4, post_local_gradient_allreduce=still_averages)

    return registered(post_localSGD_hook, state, bucket_cap_mb=0.02)


def averaging(params):
    return PostLocalSGDOptimizer(sgd(params), PeriodicModelAverager(period=3, warmup_steps=4))


@way(make=averaging, wrap=local_sgd(True))
def local_sgd_in_parts(ddp, optimizer):
    return [train(ddp, optimizer) for _ in range(11)]


@way(make=averaging, wrap=local_sgd(False))
def local_sgd_alone(ddp, optimizer):
    return [train(ddp, optimizer) for _ in range(11)]


run_ddp()
