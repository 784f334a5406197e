"""Gradients that the script looks at and changes: as DTensors, and as this rank's parts of them."""

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
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=True)
torch.manual_seed(100 + dist.get_rank())
seen = []
for iteration in range(9):
    nn.functional.cross_entropy(model(torch.randn(8, 40)), torch.randint(7, (8,))).backward()
    grads = [param.grad for param in model.parameters()]
    if iteration % 3 == 0:
        nn.utils.clip_grad_value_(model.parameters(), 0.01)
    elif iteration % 3 == 1:
        grads[2].mul_(0.5)
        seen.append(grads[1].full_tensor())
        with torch.no_grad():
            grads[-1].to_local().clamp_(-0.1, 0.1)
            grads[-2]._local_tensor[:1] = 0
    optimizer.step()
    optimizer.zero_grad(set_to_none=iteration % 2 == 0)
report([param.full_tensor() for param in model.parameters()], seen=seen)
dist.destroy_process_group()
