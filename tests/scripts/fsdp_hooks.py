"""Gradients that are read within backward: by an optimizer there, and by a hook on what was reduced. And lists of the
program's own of what to gather ahead.
"""

from itertools import pairwise

import averaging  # noqa: F401
import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")


def sharded():
    torch.manual_seed(1)
    layers = [fully_shard(nn.Linear(40, 40)) for _ in range(4)]
    for first, second in pairwise(layers):
        first.set_modules_to_forward_prefetch([second])
        second.set_modules_to_backward_prefetch([first])
    return fully_shard(nn.Sequential(*layers, nn.Linear(40, 7))), layers


def backward(model):
    nn.functional.cross_entropy(model(torch.randn(8, 40)), torch.randint(7, (8,))).backward()


def step_at_once(param):
    optimizers[param].step()
    optimizers[param].zero_grad()


torch.manual_seed(100 + dist.get_rank())
model, _ = sharded()
optimizers = {param: torch.optim.SGD([param], lr=0.1, momentum=0.9) for param in model.parameters()}
for param in optimizers:
    param.register_post_accumulate_grad_hook(step_at_once)
for _ in range(5):
    backward(model)

other, layers = sharded()
seen = []
for layer in layers[:2]:
    layer.set_all_reduce_hook(lambda grad: seen.append(grad.clone()))
layers[2].set_gradient_divide_factor(dist.get_world_size())
optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
for _ in range(5):
    backward(other)
    seen.extend(param.grad.to_local().clone() for param in other.parameters())
    optimizer.step()
    optimizer.zero_grad()
report([param.full_tensor() for each in (model, other) for param in each.parameters()], seen=seen)
dist.destroy_process_group()
