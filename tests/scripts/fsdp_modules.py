"""Modules of many kinds, sharded block by block, and what forward does with the blocks."""

from functools import partial
from itertools import pairwise

import torch
import torch.distributed as dist
from sharded import adamw, backward, parts, step, update
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointImpl, checkpoint_wrapper
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from torch.utils.checkpoint import checkpoint
from ways import run_fsdp, way


def text_loss(model):
    tokens = torch.randint(50, (4, 12))
    return nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def encoder(dropout, wrap=lambda block: block, **options):
    blocks = [nn.TransformerEncoderLayer(32, 2, 64, dropout=dropout, batch_first=True) for _ in range(4)]
    model = nn.Sequential(nn.Embedding(50, 32), *(fully_shard(wrap(block)) for block in blocks), nn.Linear(32, 50))
    return fully_shard(model, **options)


@way(lambda: encoder(0.0), torch.optim.AdamW)
def blocks(model, optimizer):
    """The root has only an embedding, whose inputs have no gradient, and a head."""
    return [update(optimizer, text_loss(model)) for _ in range(8)]


checkpointed = partial(checkpoint_wrapper, checkpoint_impl=CheckpointImpl.NO_REENTRANT)


@way(lambda: encoder(0.1, checkpointed, reshard_after_forward=False), torch.optim.AdamW)
def checkpoints(model, optimizer):
    """Checkpoints around blocks, as a wrapper of torch's makes them."""
    return [update(optimizer, text_loss(model)) for _ in range(5)]


class Tied(nn.Module):
    """An embedding and a head have the same weights, and there are blocks inside blocks."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(50, 32)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)) for _ in range(3))
        self.head = nn.Linear(32, 50, bias=False)
        self.head.weight = self.embedding.weight
        for block in self.blocks:
            fully_shard(block[0])
            fully_shard(block)

    def forward(self, tokens):
        values = self.embedding(tokens)
        for block in self.blocks:
            values = values + block(values)
        return self.head(values)


@way(lambda: fully_shard(Tied()), lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, nesterov=True))
def tied_weights(model, optimizer):
    return [update(optimizer, text_loss(model)) for _ in range(8)]


class Skipping(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers, self.head = nn.ModuleList(parts(5)), nn.Linear(40, 7)

    def forward(self, values, left_out):
        for place, layer in enumerate(self.layers):
            if place not in left_out:
                values = layer(values).tanh()
        return self.head(values)


@way(lambda: fully_shard(Skipping()), adamw)
def modules_left_out(model, optimizer):
    """A forward pass leaves modules out; there are evaluations in between, and gradients are cleared in place."""
    losses, seen = [], []
    for iteration in range(9):
        losses.append(backward(model, {iteration % 5, (iteration + 2) % 5}))
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        if iteration % 3 == 1:
            model.eval()
            with torch.no_grad():
                seen.append(model(torch.ones(2, 40), {1}))
            model.train()
    return losses, seen


class PartlyFrozen(nn.Sequential):
    def forward(self, values, learns):
        with torch.set_grad_enabled(learns):
            first = self[1](self[0](values)).relu()
        return self[5](self[4](self[3](self[2](first))))


def frozen_first():
    model = PartlyFrozen(*parts(5), nn.Linear(40, 7))
    model[0].requires_grad_(False)
    return fully_shard(model)


@way(frozen_first)
def frozen_for_some_iterations(model, optimizer):
    """A part is frozen for some iterations, besides the one that always is."""
    losses = []
    for iteration in range(9):
        model[2].requires_grad_(iteration % 3 != 1)
        losses.append(step(model, optimizer, iteration % 2 == 0))
    return losses


class Parts(nn.Module):
    """Layers that all ranks skip at times and use twice, and activation checkpoints."""

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = fully_shard(nn.Sequential(*parts(3))), nn.ModuleList(parts(3))
        self.head = nn.Linear(40, 7)

    def forward(self, inputs, skipped):
        values = checkpoint(self.encoder, self.encoder(inputs), use_reentrant=False)
        for place, layer in enumerate(self.decoder):
            if place != skipped:
                values = layer(layer(values)).relu()
        return self.head(values)


@way(lambda: fully_shard(Parts()))
def skipped_and_used_twice(model, optimizer):
    """An evaluation of the encoder alone before an update, and one layer unsharded by hand."""
    losses, seen = [], []
    for iteration in range(18):
        losses.append(backward(model, iteration % 4))
        if iteration % 2:
            with torch.no_grad():
                seen.append(model.encoder(torch.ones(2, 40)))
        optimizer.step()
        optimizer.zero_grad()
        if iteration == 6:
            model.decoder[0].unshard()
            seen.append(model.decoder[0].weight.detach().clone())
            model.decoder[0].reshard()
    return losses, seen


class Failing(nn.Linear):
    fails = False

    def forward(self, values):
        if self.fails:
            raise ValueError("this batch is bad")
        return super().forward(values).tanh()


@way(lambda: fully_shard(nn.Sequential(*(fully_shard(Failing(40, 40)) for _ in range(4)), nn.Linear(40, 7))), adamw)
def batches_that_fail(model, optimizer):
    """Batches fail in forward, and training goes on after them."""
    losses, caught = [], 0
    for iteration in range(9):
        layer = model[iteration % 4]
        layer.fails = iteration % 3 == 2
        try:
            losses.append(step(model, optimizer))
        except ValueError:
            caught += 1
            model.reset_iter_state()
            layer.fails = False
    return losses, caught


def some_ignored():
    model = nn.Sequential(*(nn.Linear(40, 40) for _ in range(4)), nn.Linear(40, 7))
    own = {model[1].bias, model[4].bias}
    for layer in model[:4]:
        fully_shard(layer, ignored_params=own)
    return fully_shard(model, ignored_params=own)


@way(some_ignored, adamw)
def ignored(model, optimizer):
    """The script averages the ignored parameters itself."""
    losses = []
    for _ in range(8):
        losses.append(backward(model))
        for param in (model[1].bias, model[4].bias):
            dist.all_reduce(param.grad)
            param.grad /= dist.get_world_size()
        optimizer.step()
        optimizer.zero_grad()
    return losses


def one_group():
    return fully_shard(nn.Sequential(nn.Linear(40, 60), nn.Tanh(), nn.Linear(60, 60), nn.Tanh(), nn.Linear(60, 7)))


@way(one_group, lambda params: torch.optim.AdamW(params, lr=1e-2, foreach=False))
def root_only(model, optimizer):
    """One group of all parameters, an optimizer without foreach, and a schedule of its rate."""
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-2, total_steps=10)
    losses = []
    for _ in range(8):
        losses.append(step(model, optimizer))
        schedule.step()
    return losses


def chain(*sizes, **options):
    linear = [fully_shard(nn.Linear(first, second), **options) for first, second in pairwise(sizes)]
    return fully_shard(nn.Sequential(*(each for layer in linear for each in (layer, nn.Tanh()))), **options)


@way(lambda: chain(10, 40, 40, 20), adamw)
def two_models(maker, optimizer):
    """They train against each other, each with an optimizer of its own."""
    critic = chain(20, 40, 40, 1)
    critics_optimizer, losses = adamw(critic.parameters()), []
    for _ in range(6):
        made = maker(torch.randn(8, 10))
        losses.append(update(critics_optimizer, critic(made.detach()).mean() - critic(torch.randn(8, 20)).mean()))
        losses.append(update(optimizer, -critic(made).mean()))
        critic.zero_grad()
    return losses, [param.full_tensor() for param in critic.parameters()]


@way(lambda: chain(33, 65, 127, 30, reshard_after_forward=False))
def kept_after_forward(model, optimizer):
    """Parameters are, of two models that one loss trains; the norm of all gradients of each is logged."""
    critic = chain(30, 64, 1, reshard_after_forward=False)
    critics_optimizer, losses, norms = torch.optim.Adam(critic.parameters()), [], []
    for _ in range(8):
        guess = model(torch.randn(16, 33))
        loss = critic(guess).mean() + guess.square().mean()
        loss.backward()
        for each in (model, critic):
            norms.append(nn.utils.clip_grad_norm_(each.parameters(), 0.05).full_tensor())
        for each in (optimizer, critics_optimizer):
            each.step()
            each.zero_grad()
        losses.append(loss.item())
    return losses, norms, [param.full_tensor() for param in critic.parameters()]


class Unusual(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(40, 40), nn.Linear(40, 40)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 40)) for _ in range(3))
        self.seldom, self.head = nn.Linear(40, 40), nn.Linear(40, 7)

    def forward(self, inputs, fails=False, seldom=False):
        values = self.second(self.first(inputs).relu())
        for block in self.blocks:
            values = values + block(values)
            if fails:
                raise ValueError("this batch is bad")
        return self.head(self.seldom(values) if seldom else values)

    def score(self, inputs):
        return self(inputs).logsumexp(1).mean()


def on_the_meta_device():
    """Two modules as one group, frozen parameters, a forward method of another name, and hooks of FSDP2."""
    with torch.device("meta"):
        model = Unusual()
    for block in model.blocks:
        block[0].weight.requires_grad_(False)
        fully_shard(block)
    fully_shard([model.first, model.second])
    fully_shard(model.seldom)
    fully_shard(model)
    model.to_empty(device="cpu")
    torch.manual_seed(1)
    for param in model.parameters():
        nn.init.normal_(param, std=0.2)
    register_fsdp_forward_method(model, "score")
    model.seldom.set_reduce_scatter_unused_params(True)
    model.blocks[1].set_separate_reduce_scatter_group()
    model.blocks[2].set_allocate_memory_from_process_group_for_comm(True)
    model.set_reduce_scatter_max_input_buffers(2)
    return model


@way(on_the_meta_device, lambda params: adamw([param for param in params if param.requires_grad]))
def unusual(model, optimizer):
    """Unused parameters, an exception in forward, and an evaluation in inference mode."""
    losses, seen = [], []
    for iteration in range(8):
        inputs, labels = torch.randn(8, 40), torch.randint(7, (8,))
        if iteration == 3:
            try:
                model(inputs, fails=True)
            except ValueError:
                model.reset_iter_state()
        for _ in range(1 + iteration % 2):
            loss = nn.functional.cross_entropy(model(inputs, seldom=iteration % 3 == 0), labels)
            loss.backward()
        if iteration == 5:
            model.score(inputs).backward()
        losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
        with torch.inference_mode():
            seen.append(model(torch.ones(2, 40)).clone())
    return losses, seen


KINDS = ("SGD", "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adagrad", "Adadelta", "RMSprop", "ASGD")


@way(lambda: fully_shard(nn.Sequential(*parts(len(KINDS)), nn.Linear(40, 7))), list)
def optimizers(model, _):
    """Each optimizer of torch that updates element by element, and several on one model."""
    each = [getattr(torch.optim, kind)(layer.parameters(), lr=1e-2) for kind, layer in zip(KINDS, model, strict=False)]
    each.append(torch.optim.SGD(model[-1].parameters(), lr=1e-2, momentum=0.9, weight_decay=0.1))
    losses = []
    for _ in range(6):
        losses.append(backward(model))
        for optimizer in each:
            optimizer.step()
            optimizer.zero_grad()
    return losses


run_fsdp()
