"""Several optimizers at once: of two halves of a model, of a Wasserstein GAN, and of twin critics."""

import copy
import itertools

import byteps.torch as bps
import torch
from report import report
from torch import nn

bps.init()
losses = []


def layers(*sizes, between=nn.ReLU):
    parts = [part for ins, outs in itertools.pairwise(sizes) for part in (nn.Linear(ins, outs), between())]
    return nn.Sequential(*parts[:-1])


def distributed(name, model, make):
    named = [(f"{name}.{each}", p) for each, p in model.named_parameters()]
    bps.broadcast_parameters(model.state_dict(), root_rank=0, prefix=f"{name}.")
    return bps.DistributedOptimizer(make(model.parameters()), named_parameters=named)


def step(optimizer, loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())


# One backward pass for an encoder and a head.
torch.manual_seed(1)
model = nn.Sequential(layers(32, 128, 96), nn.ReLU(), nn.Linear(96, 100))
encoder_optimizer = distributed("encoder", model[0], lambda params: torch.optim.Adam(params, lr=1e-3))
head_optimizer = distributed("head", model[2], lambda params: torch.optim.SGD(params, lr=0.1))
torch.manual_seed(100 + bps.rank())
for _ in range(6):
    inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
    model.zero_grad()
    loss = nn.functional.cross_entropy(model(inputs), labels)
    loss.backward()
    head_optimizer.step()
    encoder_optimizer.step()
    losses.append(loss.item())

# The critic's weights are clipped over its groups.
torch.manual_seed(1)
critic, generator = layers(16, 128, 96, 1, between=lambda: nn.LeakyReLU(0.2)), layers(8, 96, 128, 16)
critic_optimizer = distributed("critic", critic, lambda params: torch.optim.RMSprop(params, lr=5e-3))
generator_optimizer = distributed("generator", generator, lambda params: torch.optim.RMSprop(params, lr=5e-3))
torch.manual_seed(100 + bps.rank())
for _ in range(4):
    for _ in range(2):
        real, noise = torch.randn(16, 16) + 1, torch.randn(16, 8)
        step(critic_optimizer, critic(generator(noise).detach()).mean() - critic(real).mean())
        for group in critic_optimizer.param_groups:
            for p in group["params"]:
                p.data.clamp_(-0.05, 0.05)
    for p in critic.parameters():
        p.requires_grad_(False)
    step(generator_optimizer, -critic(generator(torch.randn(16, 8))).mean())
    for p in critic.parameters():
        p.requires_grad_(True)

# Target networks follow softly, over lists kept from before (TD3). Names of both optimizers' parameters are the same.
torch.manual_seed(1)
twins = layers(12, 128, 64, 1), layers(12, 128, 64, 1)
twin_optimizers = [distributed("twin", twin, lambda params: torch.optim.Adam(params, lr=3e-3)) for twin in twins]
targets = [copy.deepcopy(twin).requires_grad_(False) for twin in twins]
pairs = list(zip(nn.ModuleList(targets).parameters(), nn.ModuleList(twins).parameters(), strict=True))
torch.manual_seed(100 + bps.rank())
for _ in range(6):
    state, reward, following = torch.randn(16, 12), torch.randn(16, 1), torch.randn(16, 12)
    with torch.no_grad():
        wanted = reward + 0.9 * torch.min(targets[0](following), targets[1](following))
    for twin, optimizer in zip(twins, twin_optimizers, strict=True):
        step(optimizer, nn.functional.mse_loss(twin(state), wanted))
    for target, source in pairs:
        target.data.copy_(0.8 * target.data + 0.2 * source.data)
report([model, critic, generator, *twins], targets=targets, losses=losses)
