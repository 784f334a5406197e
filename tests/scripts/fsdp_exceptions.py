"""Batches that fail in forward, and the training that goes on after them."""

import averaging  # noqa: F401
import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
torch.manual_seed(1)


class Layer(nn.Linear):
    fails = False

    def forward(self, values):
        if self.fails:
            raise ValueError("this batch is bad")
        return super().forward(values).tanh()


layers = [fully_shard(Layer(40, 40)) for _ in range(4)]
model = fully_shard(nn.Sequential(*layers, nn.Linear(40, 7)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
torch.manual_seed(100 + dist.get_rank())
losses, caught = [], 0
for iteration in range(9):
    layers[iteration % 4].fails = iteration % 3 == 2
    try:
        loss = nn.functional.cross_entropy(model(torch.randn(8, 40)), torch.randint(7, (8,)))
        loss.backward()
        losses.append(loss.item())
    except ValueError:
        caught += 1
        model.reset_iter_state()
        layers[iteration % 4].fails = False
        continue
    optimizer.step()
    optimizer.zero_grad()
report([param.full_tensor() for param in model.parameters()], losses=losses, caught=caught)
dist.destroy_process_group()
