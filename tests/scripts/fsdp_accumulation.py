"""Accumulation without communication, with a reduction each time, and with parameters kept in between."""

import averaging  # noqa: F401
import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
torch.manual_seed(1)
model = nn.Sequential(*(fully_shard(nn.Linear(40, 40)) for _ in range(4)), nn.Linear(40, 7))
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

torch.manual_seed(100 + dist.get_rank())
losses = []


def backward():
    loss = nn.functional.cross_entropy(model(torch.randn(8, 40)), torch.randint(7, (8,)))
    loss.backward()
    losses.append(loss.item())


for iteration in range(9):
    way, last = iteration % 3, 2
    for micro in range(3):
        if way == 0:
            model.set_requires_gradient_sync(micro == last)
        elif way == 1:
            model.set_is_last_backward(micro == last)
            model.set_reshard_after_backward(micro == last)
        backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=iteration % 2 == 0)
    model.set_is_last_backward(True)
    model.set_reshard_after_backward(True)
grads = [param.grad.full_tensor() for param in model.parameters() if param.grad is not None]
report([param.full_tensor() for param in model.parameters()], losses=losses, grads=[len(grads), *grads])
dist.destroy_process_group()
