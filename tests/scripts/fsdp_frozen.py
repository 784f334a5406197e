"""A part that is frozen, and another one that is frozen for some iterations."""

import averaging  # noqa: F401
import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
torch.manual_seed(1)


class Model(nn.Sequential):
    def forward(self, values, learns):
        with torch.set_grad_enabled(learns):
            first = self[1](self[0](values)).relu()
        return self[5](self[4](self[3](self[2](first))))


model = Model(*(fully_shard(nn.Linear(40, 40)) for _ in range(5)), nn.Linear(40, 7))
model[0].requires_grad_(False)
fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
torch.manual_seed(100 + dist.get_rank())
losses = []
for iteration in range(9):
    model[2].requires_grad_(iteration % 3 != 1)
    loss = nn.functional.cross_entropy(model(torch.randn(8, 40), iteration % 2 == 0), torch.randint(7, (8,)))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
weights = [param.full_tensor() for param in model.parameters()]
report(weights, losses=losses)
dist.destroy_process_group()
