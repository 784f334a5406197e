"""Hooks around the steps, of one optimizer and of all, that decay the rate and the weights."""

import byteps.torch as bps
import torch
from report import report
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

bps.init()
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
optimizer = bps.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
bps.broadcast_parameters(model.state_dict(), root_rank=0)
seen = []


def before(optimizer, args, kwargs):
    optimizer.param_groups[0]["lr"] *= 0.95


def after(optimizer, args, kwargs):
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(0.99)


def count(optimizer, args, kwargs):
    seen.append(len(seen))


def train():
    inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(inputs), labels).backward()
    optimizer.step()


torch.manual_seed(100 + bps.rank())
for _ in range(2):
    train()
handles = [optimizer.register_step_pre_hook(before), optimizer.register_step_post_hook(after)]
for _ in range(3):
    train()
for handle in handles:
    handle.remove()
handles = [register_optimizer_step_pre_hook(count), register_optimizer_step_post_hook(count)]
for _ in range(3):
    train()
for handle in handles:
    handle.remove()
train()
report(model, seen=seen, lr=optimizer.param_groups[0]["lr"])
