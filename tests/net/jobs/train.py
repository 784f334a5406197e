"""The train.py of docs/enabling.md: a small network with Adam, whose state is broadcast.

Rule of this file: an ordinary program. It knows nothing of Prophet and runs in a process of its own.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import byteps.torch as bps
import torch

bps.init()
torch.manual_seed(bps.rank())  # the broadcasts make models and rates alike
model = torch.nn.Sequential(torch.nn.Linear(20, 300), torch.nn.ReLU(), torch.nn.Linear(300, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01 * (1 + bps.rank()))
optimizer = bps.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
bps.broadcast_parameters(model.state_dict(), root_rank=0)
bps.broadcast_optimizer_state(optimizer, root_rank=0)
for _ in range(10):
    optimizer.zero_grad()
    model(torch.full((4, 20), 1.0 + bps.rank())).square().mean().backward()
    optimizer.step()
weights = b"".join(parameter.detach().numpy().tobytes() for parameter in model.state_dict().values())
group = optimizer.param_groups[0]
options = {name: value for name, value in group.items() if name != "params"}
Path("result.json").write_text(json.dumps({"weights": hashlib.sha256(weights).hexdigest(), "options": options}))
bps.shutdown()
