"""Models of many kinds, and ways of computing with them, each trained by the usual loop."""

import warnings

import torch
from torch import nn
from torch.nn.utils import prune
from torch.utils.checkpoint import checkpoint
from ways import adam, batch, classifier, loss_of, run_byteps, train, way

for kind in (DeprecationWarning, FutureWarning):  # of torch.jit, and of old ways to normalize weights
    warnings.simplefilter("ignore", kind)


def step(optimizer, loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def convolutional():
    return nn.Sequential(
        *(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.AdaptiveAvgPool2d(2)),
        *(nn.Flatten(), nn.Linear(256, 50)),
    )


@way(convolutional, lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, weight_decay=1e-4))
def batch_norms(model, optimizer):
    """Their statistics are each worker's own."""
    for _ in range(6):
        step(optimizer, loss_of(model, torch.randn(8, 3, 12, 12), torch.randint(50, (8,))))
    return list(model.buffers())


class Recurrent(nn.Module):
    """A cell that the script unrolls by hand, so that one step uses each weight many times."""

    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.RNNCell(32, 128), nn.Linear(128, 10)

    def forward(self, series):
        hidden = torch.zeros(16, 128)
        for inputs in series:
            hidden = self.cell(inputs, hidden)
        return self.head(hidden)


@way(Recurrent, lambda params: torch.optim.Adam(params, lr=1e-3))
def recurrent_cell(model, optimizer):
    return [step(optimizer, loss_of(model, torch.randn(5, 16, 32), torch.randint(10, (16,)))) for _ in range(6)]


class Text(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 32)
        self.rnn = nn.LSTM(32, 48, num_layers=2, dropout=0.2)
        self.out = nn.Linear(48, 50)

    def forward(self, tokens, state):
        hidden, state = self.rnn(self.embed(tokens), state)
        return self.out(hidden), state


@way(Text, lambda params: torch.optim.SGD(params, lr=1.0))
def lstm(model, optimizer):
    """Text in chunks: the hidden state goes on, cut off from the last chunk; norms are clipped."""
    text = torch.randint(50, (6 * 8 + 1, 4))
    state, norms = None, []
    for start in range(0, 48, 8):
        if state is not None:
            state = tuple(each.detach() for each in state)
        optimizer.zero_grad()
        output, state = model(text[start : start + 8], state)
        nn.functional.cross_entropy(output.flatten(0, 1), text[start + 1 : start + 9].flatten()).backward()
        optimizer.synchronize()
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.25))
        with optimizer.skip_synchronize():
            optimizer.step()
    return norms, list(state)


class Tied(nn.Module):
    """A language model whose output layer is its embedding."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(200, 64)
        self.rnn = nn.GRU(64, 64, batch_first=True)
        self.out = nn.Linear(64, 200)
        self.out.weight = self.embed.weight

    def forward(self, tokens):
        return self.out(self.rnn(self.embed(tokens))[0])


@way(Tied, lambda params: torch.optim.Adam(params, lr=1e-3))
def tied_weights(model, optimizer):
    losses = []
    for _ in range(6):
        tokens = torch.randint(200, (4, 13))
        outputs = model(tokens[:, :-1]).flatten(0, 1)
        losses.append(step(optimizer, nn.functional.cross_entropy(outputs, tokens[:, 1:].flatten())))
    return losses


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(32, 4, dim_feedforward=64, dropout=0.1, batch_first=True)
        self.embed, self.encoder = nn.Embedding(100, 32), nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(32, 100)

    def forward(self, tokens):
        mask = torch.triu(torch.ones(16, 16) * -1e9, 1)
        return self.head(self.encoder(self.embed(tokens), is_causal=True, mask=mask))


def decayed_apart(params):
    params = list(params)
    groups = [
        {"params": [p for p in params if p.dim() > 1], "weight_decay": 0.1},
        {"params": [p for p in params if p.dim() <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=3e-3)


@way(Transformer, decayed_apart)
def transformer(model, optimizer):
    """No weight decay for norms and biases, and a warm-up on the wrapped optimizer."""
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 4))
    losses = []
    for _ in range(6):
        tokens = torch.randint(100, (4, 17))
        outputs = model(tokens[:, :-1]).flatten(0, 1)
        losses.append(step(optimizer, nn.functional.cross_entropy(outputs, tokens[:, 1:].flatten())))
        scheduler.step()
    return losses, scheduler.get_last_lr()


class Own(nn.Module):
    """Double precision, and parameters in no standard layer, a scalar among them."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(32, 256, dtype=torch.float64) * 0.1)
        self.mix = nn.Parameter(torch.randn(256, 10, dtype=torch.float64) * 0.1)
        self.scale = nn.Parameter(torch.tensor([1.0], dtype=torch.float64))

    def forward(self, inputs):
        return self.scale * (inputs.double() @ self.weight).sin() @ self.mix


@way(Own, adam)
def own_parameters(model, optimizer):
    return [train(model, optimizer) for _ in range(6)]


def normalized(old, new, between):
    return nn.Sequential(old(nn.Linear(32, 128)), between(), new(nn.Linear(128, 96)), between(), nn.Linear(96, 10))


@way(lambda: normalized(nn.utils.spectral_norm, nn.utils.parametrizations.spectral_norm, nn.ReLU), adam)
def spectral_norm(model, optimizer):
    """The old way and as a parametrization; its power iteration lives in buffers."""
    return [train(model, optimizer) for _ in range(6)], model


@way(lambda: normalized(nn.utils.weight_norm, nn.utils.parametrizations.weight_norm, nn.Tanh))
def weight_norm(model, optimizer):
    norms = []
    for _ in range(6):
        train(model, optimizer)
        norms.append(model[2].weight.norm().item())
    return norms


@way()
def pruned(model, optimizer):
    """Half of the weights in mid-training, and the masks made permanent at the end."""
    for iteration in range(8):
        if iteration in (3, 5):
            for layer in (model[0], model[2]):
                prune.l1_unstructured(layer, "weight", amount=0.3)
        train(model, optimizer)
    kept = [float((layer.weight_mask != 0).float().mean()) for layer in (model[0], model[2])]
    for layer in (model[0], model[2]):
        prune.remove(layer, "weight")
    return kept


@way(lambda: nn.Sequential(nn.Linear(32, 96), nn.LayerNorm(96), nn.GELU(), nn.Linear(96, 10)), torch.optim.AdamW)
def forward_in_bfloat16(model, optimizer):
    losses = []
    for _ in range(6):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = loss_of(model, *batch())
        losses.append(step(optimizer, loss))
    return losses


class Checkpointed(nn.Module):
    """Activation checkpoints, reentrant and not: backward runs parts of the forward pass again, with dropout."""

    def __init__(self):
        super().__init__()
        self.stem, self.head = nn.Linear(32, 64), nn.Linear(64, 10)
        blocks = (nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Dropout(0.1), nn.Linear(96, 64)) for _ in range(3))
        self.blocks, self.uses = nn.ModuleList(blocks), 0

    def forward(self, inputs):
        hidden = self.stem(inputs)
        for block in self.blocks:
            hidden = hidden + checkpoint(block, hidden, use_reentrant=self.uses % 2 == 0)
        self.uses += 1
        return self.head(hidden)


@way(Checkpointed, adam)
def checkpoints(model, optimizer):
    return [train(model, optimizer) for _ in range(6)]


@way(
    lambda: nn.Sequential(nn.Linear(32, 96), nn.Softplus(), nn.Linear(96, 128), nn.Softplus(), nn.Linear(128, 1)), adam
)
def gradient_penalty(model, optimizer):
    """WGAN-GP: gradients with respect to inputs, with a graph of their own, are part of the critic's loss."""
    penalties = []
    for _ in range(6):
        real, fake = torch.randn(16, 32) + 1, torch.randn(16, 32)
        mix = torch.rand(16, 1)
        between = (mix * real + (1 - mix) * fake).requires_grad_(True)
        (slope,) = torch.autograd.grad(model(between).sum(), between, create_graph=True)
        penalty = ((slope.norm(dim=1) - 1) ** 2).mean()
        step(optimizer, model(fake).mean() - model(real).mean() + 10 * penalty)
        penalties.append(penalty.item())
    return penalties


@way(lambda: torch.jit.script(classifier()), adam)
def scripted(model, optimizer):
    """BytePS is given the scripted module's parameters."""
    return [train(model, optimizer) for _ in range(6)]


@way()
def functional_call(model, optimizer):
    """With a dict of parameters made before training."""
    params, losses = dict(model.named_parameters()), []
    for _ in range(6):
        inputs, labels = batch()
        outputs = torch.func.functional_call(model, params, (inputs,))
        losses.append(step(optimizer, nn.functional.cross_entropy(outputs, labels)))
    return losses


@way(classifier, adam)
def inner_steps(model, optimizer):
    """Meta-learning: an inner step with a graph of its own over kept parameters, and the outer one through it."""
    names, params = zip(*model.named_parameters(), strict=True)

    def loss_at(values, inputs, labels):
        output = torch.func.functional_call(model, dict(zip(names, values, strict=True)), (inputs,))
        return nn.functional.cross_entropy(output, labels)

    losses = []
    for _ in range(6):
        inputs, labels = batch()
        slopes = torch.autograd.grad(loss_at(params, inputs[:8], labels[:8]), params, create_graph=True)
        fast = [p - 0.1 * slope for p, slope in zip(params, slopes, strict=True)]
        losses.append(step(optimizer, loss_at(fast, inputs[8:], labels[8:])))
    return losses


run_byteps()
