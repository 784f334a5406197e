"""Two modules by turns: the discriminator is frozen while the generator learns through its wrapper."""

import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(1)
generator, discriminator = DistributedDataParallel(nn.Linear(8, 32)), DistributedDataParallel(nn.Linear(32, 1))
g_optimizer = torch.optim.Adam(generator.parameters(), lr=1e-2)
d_optimizer = torch.optim.Adam(discriminator.parameters(), lr=1e-2)

torch.manual_seed(100 + dist.get_rank())
losses = []
for _ in range(12):
    noise = torch.randn(16, 8)
    discriminator.requires_grad_(True)
    d_optimizer.zero_grad()
    d_loss = (discriminator(generator(noise).detach()) - 1).square().mean()
    d_loss = d_loss + discriminator(torch.randn(16, 32)).square().mean()
    d_loss.backward()
    d_optimizer.step()
    discriminator.requires_grad_(False)
    g_optimizer.zero_grad()
    g_loss = discriminator(generator(noise)).square().mean()
    g_loss.backward()
    g_optimizer.step()
    losses += [d_loss.item(), g_loss.item()]
report([generator, discriminator], losses=losses)
