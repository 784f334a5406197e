"""A GAN: two modules, two optimizers, each module used in the other's pass; and one that is frozen in it."""

import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(1)
discriminator = DistributedDataParallel(nn.Sequential(nn.Linear(64, 128), nn.LeakyReLU(0.2), nn.Linear(128, 1)))
generator = nn.Sequential(nn.Linear(64, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 64))
generator = DistributedDataParallel(generator)
d_optimizer = torch.optim.Adam(discriminator.parameters(), lr=2e-3, betas=(0.5, 0.999))
g_optimizer = torch.optim.Adam(generator.parameters(), lr=2e-3, betas=(0.5, 0.999))

torch.manual_seed(100 + dist.get_rank())
losses = []
for _ in range(7):
    real, noise = torch.randn(16, 64) + 1, torch.randn(16, 64)
    d_optimizer.zero_grad()
    fake = generator(noise)
    d_loss = nn.functional.softplus(-discriminator.module(real)).mean()
    both = discriminator(torch.cat([real, fake.detach()]))
    d_loss = nn.functional.softplus(-both[:16]).mean() + nn.functional.softplus(both[16:]).mean()
    d_loss.backward()
    d_optimizer.step()
    g_optimizer.zero_grad()
    g_loss = nn.functional.softplus(-discriminator.module(fake)).mean()
    g_loss.backward()
    g_optimizer.step()
    losses += [d_loss.item(), g_loss.item()]

maker, judge = DistributedDataParallel(nn.Linear(8, 32)), DistributedDataParallel(nn.Linear(32, 1))
maker_optimizer = torch.optim.Adam(maker.parameters(), lr=1e-2)
judge_optimizer = torch.optim.Adam(judge.parameters(), lr=1e-2)
for _ in range(12):
    noise = torch.randn(16, 8)
    judge.requires_grad_(True)
    judge_optimizer.zero_grad()
    loss = (judge(maker(noise).detach()) - 1).square().mean() + judge(torch.randn(16, 32)).square().mean()
    loss.backward()
    judge_optimizer.step()
    judge.requires_grad_(False)
    maker_optimizer.zero_grad()
    judge(maker(noise)).square().mean().backward()
    maker_optimizer.step()
    losses.append(loss.item())
report(
    [discriminator, list(generator.parameters()), maker, judge],
    states=[d_optimizer.state_dict(), g_optimizer.state_dict()],
    buffers=list(generator.buffers()),
    losses=losses,
)
