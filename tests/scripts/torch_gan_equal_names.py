"""A GAN of two nn.Sequential: the parameters of both optimizers have the same names.

The discriminator learns from a pool of earlier fakes, so its backward pass comes before the generator is used again.
"""

import byteps.torch as bps
import torch
from report import report
from torch import nn

bps.init()
torch.manual_seed(1)
discriminator = nn.Sequential(nn.Linear(64, 128), nn.LeakyReLU(0.2), nn.Linear(128, 64))
generator = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))
d_optimizer = torch.optim.Adam(discriminator.parameters(), lr=2e-3, betas=(0.5, 0.999))
d_optimizer = bps.DistributedOptimizer(d_optimizer, named_parameters=discriminator.named_parameters())
g_optimizer = torch.optim.Adam(generator.parameters(), lr=2e-3, betas=(0.5, 0.999))
g_optimizer = bps.DistributedOptimizer(g_optimizer, named_parameters=generator.named_parameters())
bps.broadcast_parameters(discriminator.state_dict(), root_rank=0)
bps.broadcast_parameters(generator.state_dict(), root_rank=0)

torch.manual_seed(100 + bps.rank())
losses = []
fake = torch.randn(16, 64)
for _ in range(6):
    real = torch.randn(16, 64) + 1
    d_optimizer.zero_grad()
    d_loss = nn.functional.softplus(-discriminator(real).mean(1)).mean()
    d_loss = d_loss + nn.functional.softplus(discriminator(fake.detach()).mean(1)).mean()
    d_loss.backward()
    d_optimizer.step()
    for p in discriminator.parameters():
        p.requires_grad_(False)
    fake = generator(torch.randn(16, 64))
    g_optimizer.zero_grad()
    g_loss = nn.functional.softplus(-discriminator(fake).mean(1)).mean()
    g_loss.backward()
    g_optimizer.step()
    for p in discriminator.parameters():
        p.requires_grad_(True)
    losses += [d_loss.item(), g_loss.item()]
report([discriminator.state_dict(), generator.state_dict()], losses=losses)
