"""Hooks of modules and of tensors within backward, and hooks around the optimizer's step."""

import averaging  # noqa: F401
import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
torch.manual_seed(1)


def clamped(module, inputs, output):
    output.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))
    return output.clone()


model = nn.Sequential(*(fully_shard(nn.Linear(40, 40)) for _ in range(4)), nn.Linear(40, 7))
fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
seen = []
model[1].register_full_backward_hook(lambda module, inner, outer: (inner[0] * 0.5,))
model[2].register_forward_hook(clamped)
optimizer.register_step_pre_hook(lambda *_: seen.append(model[0].weight.grad.full_tensor()))
optimizer.register_step_post_hook(lambda *_: seen.append(model[3].weight.full_tensor()))
torch.manual_seed(100 + dist.get_rank())
for _ in range(6):
    nn.functional.cross_entropy(model(torch.randn(8, 40)), torch.randint(7, (8,))).backward()
    optimizer.step()
    optimizer.zero_grad()
report([param.full_tensor() for param in model.parameters()], seen=seen)
dist.destroy_process_group()
