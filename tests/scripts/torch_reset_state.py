"""In mid-training a layer begins anew, and the optimizer forgets what it knew of it."""

import byteps.torch as bps
import torch
from report import report
from torch import nn

bps.init()
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
optimizer = bps.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
bps.broadcast_parameters(model.state_dict(), root_rank=0)

torch.manual_seed(100 + bps.rank())
averages = []
for iteration in range(8):
    inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(inputs), labels).backward()
    optimizer.step()
    averages.append(float(optimizer.state[model[2].weight]["exp_avg"].abs().sum()))
    if iteration == 4:
        torch.manual_seed(7)
        model[2].reset_parameters()
        for p in (model[2].weight, model[2].bias):
            optimizer.state[p]["exp_avg"].zero_()
            optimizer.state[p]["exp_avg_sq"].zero_()
        torch.manual_seed(200 + bps.rank())
report(model, averages=averages)
