"""Proximal policy optimization: an old policy copied by state_dict, several epochs over one batch, two heads."""

import copy

import byteps.torch as bps
import torch
from report import report
from torch import nn

bps.init()
torch.manual_seed(1)


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(32, 128), nn.Tanh())
        self.actor, self.critic = nn.Linear(128, 50), nn.Linear(128, 1)

    def forward(self, states):
        hidden = self.body(states)
        return torch.distributions.Categorical(logits=self.actor(hidden)), self.critic(hidden).squeeze(1)


model = Policy()
old = copy.deepcopy(model)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, eps=1e-5)
optimizer = bps.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
bps.broadcast_parameters(model.state_dict(), root_rank=0)

torch.manual_seed(100 + bps.rank())
values = []
for _ in range(3):
    old.load_state_dict(model.state_dict())
    states, returns = torch.randn(16, 32), torch.randn(16)
    with torch.no_grad():
        policy, value = old(states)
        actions = policy.sample()
        advantage, before = returns - value, policy.log_prob(actions)
    for _ in range(3):
        policy, value = model(states)
        ratio = (policy.log_prob(actions) - before).exp()
        gain = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
        loss = nn.functional.mse_loss(value, returns) - gain - 0.01 * policy.entropy().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.synchronize()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        with optimizer.skip_synchronize():
            optimizer.step()
        values.append(loss.item())
report(model, values=values)
