"""Each optimizer of torch that updates element by element, and several on one model."""

import averaging  # noqa: F401
import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
torch.manual_seed(1)
kinds = ("SGD", "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adagrad", "Adadelta", "RMSprop", "ASGD")
torch.manual_seed(1)
layers = [fully_shard(nn.Linear(30, 30)) for _ in kinds]
model = fully_shard(nn.Sequential(*layers, nn.Linear(30, 7)))
optimizers = [
    getattr(torch.optim, kind)(layer.parameters(), lr=1e-2) for kind, layer in zip(kinds, layers, strict=True)
]
optimizers.append(torch.optim.SGD(model[-1].parameters(), lr=1e-2, momentum=0.9, weight_decay=0.1))
torch.manual_seed(100 + dist.get_rank())
losses = []
for _ in range(6):
    loss = nn.functional.cross_entropy(model(torch.randn(8, 30)), torch.randint(7, (8,)))
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
    losses.append(loss.item())
report([param.full_tensor() for param in model.parameters()], losses=losses)
dist.destroy_process_group()
