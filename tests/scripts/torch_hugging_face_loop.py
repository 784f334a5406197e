"""The loop as Hugging Face's Trainer runs it: accumulation, clipping, a scheduler, logs and checkpoints."""

import io

import byteps.torch as bps
import torch
from report import report
from torch import nn

bps.init()
torch.manual_seed(1)


class AcceleratedOptimizer(torch.optim.Optimizer):
    """Forwards to the optimizer that it holds."""

    def __init__(self, optimizer):
        self.optimizer = optimizer

    @property
    def state(self):
        return self.optimizer.state

    @property
    def param_groups(self):
        return self.optimizer.param_groups

    @property
    def defaults(self):
        return self.optimizer.defaults

    def zero_grad(self, set_to_none=None):
        self.optimizer.zero_grad()

    def step(self, closure=None):
        with self.optimizer.skip_synchronize():
            self.optimizer.step(closure)

    def state_dict(self):
        return self.optimizer.state_dict()


model = nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
optimizer = bps.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), backward_passes_per_step=2)
bps.broadcast_parameters(model.state_dict(), root_rank=0)
torch.manual_seed(100 + bps.rank())
optimizer = AcceleratedOptimizer(optimizer)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer.optimizer, lambda step: max(0.0, 1 - step / 8))
logs, total = [], torch.tensor(0.0)
saved = io.BytesIO()
for micro in range(12):
    inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
    model.train()
    loss = nn.functional.cross_entropy(model(inputs), labels) / 2
    loss.backward()
    total += loss.detach()
    if micro % 2 == 1:
        optimizer.optimizer.synchronize()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        model.zero_grad()
        logs.append({"loss": total.item(), "grad_norm": norm.item(), "learning_rate": scheduler.get_last_lr()[0]})
        total -= total
    if micro == 7 and bps.rank() == 0:
        torch.save([model.state_dict(), optimizer.state_dict(), scheduler.state_dict()], saved)
saved.seek(0)
checkpoint = torch.load(saved)[0] if bps.rank() == 0 else {}
report(model, logs=logs, saved=[*checkpoint.values(), 0.0])
