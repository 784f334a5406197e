"""The loop as Lightning runs it: the optimizer behind a proxy of its class, and a closure that step() calls.

As Lightning does for engines like BytePS, the averages are awaited after backward and step() does not wait again.
"""

import byteps.torch as bps
import torch
from report import report
from torch import nn

bps.init()
torch.manual_seed(1)


class LightningOptimizer:
    """Looks like the optimizer that it holds."""

    def __init__(self, optimizer):
        self.__dict__ = {key: value for key, value in vars(optimizer).items() if key != "step"}
        self.__class__ = type(f"Lightning{type(optimizer).__name__}", (type(self), type(optimizer)), {})
        self._optimizer = optimizer

    def step(self, closure):
        with self._optimizer.skip_synchronize():
            return self._optimizer.step(closure)


model = nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
optimizer = bps.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
bps.broadcast_parameters(model.state_dict(), root_rank=0)

torch.manual_seed(100 + bps.rank())
proxy = LightningOptimizer(optimizer)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
losses = []
for _ in range(6):
    inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))

    def closure(inputs=inputs, labels=labels):
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.synchronize()
        nn.utils.clip_grad_norm_([p for group in proxy.param_groups for p in group["params"]], 0.5)
        return loss

    losses.append(proxy.step(closure).item())
    scheduler.step()
report(model, losses=losses)
