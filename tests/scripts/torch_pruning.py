"""Half of the weights pruned in mid-training, and the masks made permanent at the end."""

import byteps.torch as bps
import torch
from report import report
from torch import nn
from torch.nn.utils import prune

bps.init()
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
optimizer = bps.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
bps.broadcast_parameters(model.state_dict(), root_rank=0)

torch.manual_seed(100 + bps.rank())
for iteration in range(8):
    if iteration in (3, 5):
        for layer in (model[0], model[2]):
            prune.l1_unstructured(layer, "weight", amount=0.3)
    inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(inputs), labels).backward()
    optimizer.step()
kept = [float((layer.weight_mask != 0).float().mean()) for layer in (model[0], model[2])]
for layer in (model[0], model[2]):
    prune.remove(layer, "weight")
report(model, kept=kept)
