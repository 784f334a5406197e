"""Per-sample gradient norms by torch.func's grad and vmap over kept parameters, logged before each step."""

import byteps.torch as bps
import torch
from report import report
from torch import nn

bps.init()
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
optimizer = bps.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
bps.broadcast_parameters(model.state_dict(), root_rank=0)

torch.manual_seed(100 + bps.rank())
params = dict(model.named_parameters())


def loss_of(params, inputs, label):
    output = torch.func.functional_call(model, params, (inputs[None],))
    return nn.functional.cross_entropy(output, label[None])


per_sample = torch.func.vmap(torch.func.grad(loss_of), in_dims=(None, 0, 0))
norms = []
for _ in range(6):
    inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
    detached = {name: p.detach() for name, p in params.items()}
    norms.append(sum(grad.flatten(1).pow(2).sum(1) for grad in per_sample(detached, inputs, labels).values()))
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(inputs), labels).backward()
    optimizer.step()
report(model, norms=norms)
