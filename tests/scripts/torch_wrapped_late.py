"""An optimizer has a state, hooks and other defaults by the time it is wrapped; the wrapped one begins anew."""

import byteps.torch as bps
import torch
from report import report
from torch import nn

bps.init()
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 128), nn.ReLU(), nn.Linear(128, 10))
extra = nn.Parameter(torch.ones(3))
inner = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
steps = []
inner.register_step_post_hook(lambda *_: steps.append(len(steps)))


def train(optimizer, iterations):
    for _ in range(iterations):
        inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()


train(inner, 3)  # before there is any other worker, on the same data
optimizer = bps.DistributedOptimizer(inner, named_parameters=model.named_parameters())
bps.broadcast_parameters(model.state_dict(), root_rank=0)
kept = [len(optimizer.state), optimizer.defaults["lr"], optimizer.defaults["momentum"]]

torch.manual_seed(100 + bps.rank())
train(optimizer, 5)
inner.param_groups[0]["lr"] = 0.01  # the groups are one
train(optimizer, 3)
optimizer.add_param_group({"params": [extra]})
kept += [optimizer.param_groups[1]["lr"], len(steps), len(inner.state), len(optimizer.state)]

head = nn.Linear(10, 10)
inner = torch.optim.Adagrad(head.parameters(), lr=0.1, initial_accumulator_value=0.1)
optimizer = bps.DistributedOptimizer(inner, named_parameters=[(f"head.{n}", p) for n, p in head.named_parameters()])
bps.broadcast_parameters(head.state_dict(), root_rank=0)
model = nn.Sequential(model.requires_grad_(False), head)
train(optimizer, 3)
report(model, kept=kept)
