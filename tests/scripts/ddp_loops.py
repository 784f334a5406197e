"""Loops of programs: accumulation, closures, scalers, layers frozen for a while, loaded states, several models."""

import contextlib

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from ways import adam, batch, classifier, loss_of, run_ddp, train, way


@way()
def accumulation(ddp, optimizer):
    """Without no_sync(): each pass averages what is there. Gradients are zeroed in place."""
    losses = []
    for iteration in range(15):
        loss = loss_of(ddp, *batch()) / 3
        loss.backward()
        losses.append(loss.item())
        if iteration % 3 == 2:
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
        if iteration == 10:
            optimizer.step()  # twice with the same gradients
    return losses, [p.grad for p in ddp.parameters()]


@way(make=torch.optim.AdamW)
def accumulation_within_no_sync(ddp, optimizer):
    """The last pass is outside. Then a step on what one rank alone has."""
    losses, grads = [], []
    for _ in range(6):
        optimizer.zero_grad()
        for part in range(3):
            with ddp.no_sync() if part < 2 else contextlib.nullcontext():
                loss = loss_of(ddp, *batch()) / 3
                loss.backward()
            losses.append(loss.item())
            grads.append(ddp.module[0].bias.grad.sum().item())
        optimizer.step()
    last = batch()
    with ddp.no_sync():
        loss_of(ddp, *last).backward()
    own = [p.grad.clone() for p in ddp.parameters()]
    # What was left over from no_sync() goes into the next average.
    loss_of(ddp, *last).backward()
    optimizer.step()
    return losses, grads, own, optimizer.state_dict()


@way(make=adam)
def closure_that_clips(ddp, optimizer):
    losses, norms = [], []
    for iteration in range(8):
        held = batch()

        def closure(held=held, iteration=iteration):
            optimizer.zero_grad()
            loss = loss_of(ddp, *held)
            loss.backward()
            if iteration % 2:
                norms.append(nn.utils.clip_grad_norm_(ddp.parameters(), 0.5))
            return loss

        losses.append(optimizer.step(closure).item())
    return losses, norms, optimizer.state_dict()


def first_frozen():
    model = classifier()
    model[0].requires_grad_(False)
    return model


@way(
    first_frozen,
    lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, weight_decay=0.1),
    find_unused_parameters=True,
)
def frozen_and_thawed(ddp, optimizer):
    """Layers are frozen before wrapping, frozen later, and thawed again."""
    model, losses = ddp.module, []
    for iteration in range(12):
        if iteration in (3, 6):
            model[2].requires_grad_(iteration == 6)
        if iteration == 8:
            model[4].bias.requires_grad_(False)
        optimizer.zero_grad(set_to_none=iteration % 2 == 0)
        loss = loss_of(ddp, *batch())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, optimizer.state_dict()


def normed_layer():
    return nn.Sequential(nn.Linear(32, 96), nn.LayerNorm(96), nn.ReLU(), nn.Linear(96, 10))


def scaled(ddp, optimizer):
    """The scale is too large at first; forward is in bfloat16."""
    scaler, scales = torch.amp.GradScaler("cpu", init_scale=2.0**127, growth_interval=2), []
    for iteration in range(8):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = loss_of(lambda inputs: ddp(inputs) * 4, *batch())
        scaler.scale(loss).backward()
        if iteration % 2:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(ddp.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    return scales, optimizer.state_dict()


way(normed_layer, adam)(scaled)


@way(normed_layer, lambda params: torch.optim.Adam(params, lr=1e-2, fused=True))
def scaled_and_fused(ddp, optimizer):
    return scaled(ddp, optimizer)


def batch_normed():
    return nn.Sequential(nn.Linear(32, 96), nn.BatchNorm1d(96), nn.ReLU(), nn.Linear(96, 10))


@way(batch_normed, adam)
def loaded_again(ddp, optimizer):
    """Everything is saved in mid-training, loaded, and loaded into new objects, which go on."""

    def steps(ddp, optimizer, schedule, count):
        for _ in range(count):
            train(ddp, optimizer)
            schedule.step()

    job = ddp, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    steps(*job, 5)
    torch.save([part.state_dict() for part in job], "checkpoint.pt")
    torch.save(optimizer, "optimizer.pt")
    steps(*job, 2)
    for part, state in zip(job, torch.load("checkpoint.pt"), strict=True):
        part.load_state_dict(state)
    steps(*job, 3)
    other = DistributedDataParallel(batch_normed())
    others_optimizer = adam(other.parameters())
    fresh = other, others_optimizer, torch.optim.lr_scheduler.StepLR(others_optimizer, 2, 0.5)
    for part, state in zip(fresh, torch.load("checkpoint.pt"), strict=True):
        part.load_state_dict(state)
    steps(*fresh, 4)
    whole = torch.load("optimizer.pt", weights_only=False)
    assert type(whole) is torch.optim.Adam, type(whole)
    return [part.state_dict() for part in (*job[1:], *fresh, whole)], list(ddp.buffers())


class Words(nn.Module):
    """Sparse gradients beside dense ones."""

    def __init__(self):
        super().__init__()
        self.words, self.layers = nn.Embedding(50, 32, sparse=True), classifier()
        self.bags = nn.EmbeddingBag(50, 10, sparse=True)

    def forward(self, words):
        return self.layers(self.words(words).mean(1)) + self.bags(words)


def for_sparse_and_dense(params):
    words, *layers, bags = params
    return torch.optim.SparseAdam([words, bags], lr=1e-2), torch.optim.SGD(layers, lr=0.1, momentum=0.9)


@way(Words, for_sparse_and_dense)
def sparse(ddp, optimizers):
    """With accumulation and clipping by value."""
    losses, grads = [], []
    for iteration in range(9):
        words, labels = torch.randint(50, (16, 5)), torch.randint(10, (16,))
        for optimizer in optimizers:
            optimizer.zero_grad()
        if iteration == 3:
            with ddp.no_sync():
                loss_of(ddp, words, labels).backward()
        loss = loss_of(ddp, words, labels)
        loss.backward()
        if iteration == 5:
            grads += [param.grad.to_dense() for param in ddp.parameters()]
            nn.utils.clip_grad_value_(ddp.module.layers.parameters(), 0.01)
        for optimizer in optimizers:
            optimizer.step()
        losses.append(loss.item())
    return losses, grads


wrappers = []


def beside_another(model):
    """Wrap a module that another wrapper shares a layer of."""
    other = nn.Sequential(model[0], nn.Tanh(), nn.Linear(48, 10))
    wrappers.append(DistributedDataParallel(model))
    wrappers.append(DistributedDataParallel(other, find_unused_parameters=True))
    return wrappers[0]


@way(
    lambda: nn.Sequential(nn.Linear(32, 48), nn.ReLU(), nn.Linear(48, 10)),
    lambda params: adam([*params, *wrappers[1].module[2].parameters()]),
    wrap=beside_another,
)
def shared(first, optimizer):
    """Two wrappers share a module, and are used in one loss, in turns, and one within a checkpoint."""
    second, losses = wrappers[1], []
    for iteration in range(12):
        inputs, labels = batch()
        optimizer.zero_grad()
        if iteration % 3 == 0:
            loss = loss_of(lambda inputs: first(inputs) + second(inputs), inputs, labels)
        else:
            chosen = (first, second)[iteration % 2]
            hidden = checkpoint(chosen.module[0], inputs, use_reentrant=False)
            loss = nn.functional.cross_entropy(hidden, labels) + loss_of(chosen, inputs, labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, second, optimizer.state_dict()


def softplus(values):
    return nn.functional.softplus(values).mean()


def adversary(params):
    return torch.optim.Adam(params, lr=2e-3, betas=(0.5, 0.999))


@way(lambda: nn.Sequential(nn.Linear(64, 128), nn.LeakyReLU(0.2), nn.Linear(128, 1)), adversary)
def adversaries(discriminator, optimizer):
    """Two modules with an optimizer each; each module is used in the other's pass."""
    generator = nn.Sequential(nn.Linear(64, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 64))
    generator = DistributedDataParallel(generator)
    others_optimizer, losses = adversary(generator.parameters()), []
    for _ in range(7):
        real, noise = torch.randn(16, 64) + 1, torch.randn(16, 64)
        optimizer.zero_grad()
        fake = generator(noise)
        both = discriminator(torch.cat([real, fake.detach()]))
        losses.append(softplus(-both[:16]) + softplus(both[16:]))
        losses[-1].backward()
        optimizer.step()
        others_optimizer.zero_grad()
        losses.append(softplus(-discriminator.module(fake)))
        losses[-1].backward()
        others_optimizer.step()
    return losses, generator, optimizer.state_dict(), others_optimizer.state_dict()


@way(lambda: nn.Linear(32, 1), adam)
def frozen_in_the_others_pass(judge, optimizer):
    maker = DistributedDataParallel(nn.Linear(8, 32))
    makers_optimizer, losses = adam(maker.parameters()), []
    for _ in range(12):
        noise = torch.randn(16, 8)
        judge.requires_grad_(True)
        optimizer.zero_grad()
        loss = (judge(maker(noise).detach()) - 1).square().mean() + judge(torch.randn(16, 32)).square().mean()
        loss.backward()
        optimizer.step()
        judge.requires_grad_(False)
        makers_optimizer.zero_grad()
        judge(maker(noise)).square().mean().backward()
        makers_optimizer.step()
        losses.append(loss.item())
    return losses, maker


@way(lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 3)).to(memory_format=torch.channels_last))
def channels_last(ddp, optimizer):
    for _ in range(6):
        optimizer.zero_grad()
        ddp(torch.randn(4, 3, 8, 8).to(memory_format=torch.channels_last)).square().mean().backward()
        optimizer.step()


KINDS = {
    "nesterov": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "foreach": True}),
    "amsgrad_foreach": (torch.optim.Adam, {"lr": 1e-2, "amsgrad": True, "foreach": True}),
    "fused": (torch.optim.Adam, {"lr": 1e-2, "fused": True}),
    "not_foreach": (torch.optim.AdamW, {"lr": 1e-2, "foreach": False}),
    "maximize": (torch.optim.AdamW, {"lr": torch.tensor(1e-2), "maximize": True}),
    "adadelta": (torch.optim.Adadelta, {"lr": 0.5}),
    "adagrad": (torch.optim.Adagrad, {"lr": 1e-2}),
    "adamax": (torch.optim.Adamax, {"lr": 1e-2}),
    "asgd": (torch.optim.ASGD, {"lr": 1e-2}),
    "nadam": (torch.optim.NAdam, {"lr": 1e-2}),
    "radam": (torch.optim.RAdam, {"lr": 1e-2}),
    "rmsprop": (torch.optim.RMSprop, {"lr": 1e-2, "centered": True, "momentum": 0.5}),
    "rprop": (torch.optim.Rprop, {"lr": 1e-2}),
}


def trained_with(name, kind, options):
    def some_steps(ddp, optimizer):
        return [train(ddp, optimizer) for _ in range(5)], optimizer.state_dict()

    some_steps.__name__ = name
    way(lambda: nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 10)), lambda p: kind(p, **options))(
        some_steps
    )


for name, (kind, options) in KINDS.items():
    trained_with(name, kind, options)
run_ddp()
