"""Twin critics and an actor with target networks that follow softly, over lists kept from before (TD3)."""

import copy

import byteps.torch as bps
import torch
from report import report
from torch import nn

bps.init()
torch.manual_seed(1)


def network(inputs, outputs):
    return nn.Sequential(nn.Linear(inputs, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, outputs))


def distributed(model, **names):
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    bps.broadcast_parameters(model.state_dict(), root_rank=0)
    return bps.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())


first, second = network(12, 1), network(12, 1)
first_optimizer, second_optimizer = distributed(first), distributed(second)
targets = copy.deepcopy(first).requires_grad_(False), copy.deepcopy(second).requires_grad_(False)
pairs = [
    *zip(targets[0].parameters(), first.parameters(), strict=True),
    *zip(targets[1].parameters(), second.parameters(), strict=True),
]
torch.manual_seed(100 + bps.rank())
values = []
for _ in range(6):
    state, reward, following = torch.randn(16, 12), torch.randn(16, 1), torch.randn(16, 12)
    with torch.no_grad():
        wanted = reward + 0.9 * torch.min(targets[0](following), targets[1](following))
    for critic, optimizer in ((first, first_optimizer), (second, second_optimizer)):
        loss = nn.functional.mse_loss(critic(state), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    for target, source in pairs:
        target.data.copy_(0.8 * target.data + 0.2 * source.data)
report([first.state_dict(), second.state_dict()], targets=[each.state_dict() for each in targets], values=values)
