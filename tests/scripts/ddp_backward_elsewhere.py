"""Backward passes begun by TorchScript, by a call of the engine itself, for some inputs, after those of torch.func, and
in several threads.
"""

import sys
import threading

import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()


@torch.jit.script
def scripted(loss: torch.Tensor):
    loss.backward()


def engine(loss):
    engine = torch.autograd.Variable._execution_engine
    engine.run_backward(
        (loss,), (torch.ones_like(loss),), False, False, (), allow_unreachable=True, accumulate_grad=True
    )


def in_a_thread(loss):
    thread = threading.Thread(target=loss.backward)
    thread.start()
    thread.join()


def only_some(loss):
    params = list(ddp.parameters())
    loss.backward(inputs=params[:2], retain_graph=True)
    loss.backward(inputs=params[2:])


def after_a_transform(loss):
    torch.func.hessian(torch.sin)(torch.ones(3))
    loss.backward()


def wrapped(group=None):
    torch.manual_seed(1)
    return DistributedDataParallel(
        nn.Sequential(nn.Linear(16, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 4)), process_group=group
    )


def train(ddp, backward, batches, seen):
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
    params = list(ddp.parameters())[::-1]
    for number, batch in enumerate(batches):
        optimizer.zero_grad()
        backward(ddp(batch).square().mean())
        if number % 2:
            seen.append(sum(float(param.grad.double().sum()) for param in params))
            nn.utils.clip_grad_norm_(params, 0.5)
        optimizer.step()
        if number % 3:
            seen.append(sum(float(param.detach().double().sum()) for param in params))


weights, gradients = [], []
for backward in (scripted, engine, in_a_thread, only_some, after_a_transform):
    ddp = wrapped()
    torch.manual_seed(100 + rank)
    train(ddp, backward, torch.randn(6, 8, 16), gradients)
    weights += list(ddp.parameters())

modules = [wrapped(dist.new_group([0, 1])) for _ in range(2)]
seen = [[], []]
threads = [
    threading.Thread(target=train, args=(module, torch.Tensor.backward, torch.randn(40, 8, 16), own))
    for module, own in zip(modules, seen, strict=True)
]
sys.setswitchinterval(1e-5)
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
for module in modules:
    weights += list(module.parameters())
report(weights, gradients=[gradients, seen])
dist.destroy_process_group()
