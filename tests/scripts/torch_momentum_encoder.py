"""Momentum contrast: the key encoder follows the query encoder over zipped parameters of both."""

import copy

import byteps.torch as bps
import torch
from report import report
from torch import nn

bps.init()
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 128), nn.ReLU(), nn.Linear(128, 10))
key_model = copy.deepcopy(model).requires_grad_(False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
optimizer = bps.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
bps.broadcast_parameters(model.state_dict(), root_rank=0)

torch.manual_seed(100 + bps.rank())
key_model.load_state_dict(model.state_dict())
losses = []
for _ in range(6):
    views = torch.randn(2, 16, 32)
    with torch.no_grad():
        for key, query in zip(key_model.parameters(), model.parameters(), strict=True):
            key.data = key.data * 0.9 + query.data * 0.1
        keys = nn.functional.normalize(key_model(views[1]))
    logits = nn.functional.normalize(model(views[0])) @ keys.T / 0.2
    loss = nn.functional.cross_entropy(logits, torch.arange(16))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
report(model, losses=losses, keys=key_model)
