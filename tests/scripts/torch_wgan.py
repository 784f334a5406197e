"""A Wasserstein GAN: two optimizers, prefixed names, and the critic's weights clipped over its groups."""

import byteps.torch as bps
import torch
from report import report
from torch import nn

bps.init()
torch.manual_seed(1)
critic = nn.Sequential(nn.Linear(16, 128), nn.LeakyReLU(0.2), nn.Linear(128, 96), nn.LeakyReLU(0.2), nn.Linear(96, 1))
generator = nn.Sequential(nn.Linear(8, 96), nn.ReLU(), nn.Linear(96, 128), nn.ReLU(), nn.Linear(128, 16))
critic_optimizer = torch.optim.RMSprop(critic.parameters(), lr=5e-3)
critic_optimizer = bps.DistributedOptimizer(
    critic_optimizer, named_parameters=[(f"critic.{name}", p) for name, p in critic.named_parameters()]
)
generator_optimizer = torch.optim.RMSprop(generator.parameters(), lr=5e-3)
generator_optimizer = bps.DistributedOptimizer(
    generator_optimizer, named_parameters=[(f"generator.{name}", p) for name, p in generator.named_parameters()]
)
bps.broadcast_parameters(critic.state_dict(), root_rank=0, prefix="critic.")
bps.broadcast_parameters(generator.state_dict(), root_rank=0, prefix="generator.")

torch.manual_seed(100 + bps.rank())
distances = []
for _ in range(4):
    for _ in range(2):
        real, noise = torch.randn(16, 16) + 1, torch.randn(16, 8)
        loss = critic(generator(noise).detach()).mean() - critic(real).mean()
        critic_optimizer.zero_grad()
        loss.backward()
        critic_optimizer.step()
        distances.append(loss.item())
        for group in critic_optimizer.param_groups:
            for p in group["params"]:
                p.data.clamp_(-0.05, 0.05)
    for p in critic.parameters():
        p.requires_grad_(False)
    loss = -critic(generator(torch.randn(16, 8))).mean()
    generator_optimizer.zero_grad()
    loss.backward()
    generator_optimizer.step()
    for p in critic.parameters():
        p.requires_grad_(True)
report([critic.state_dict(), generator.state_dict()], distances=distances)
