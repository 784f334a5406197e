"""Compiled functions over gradients and parameters, a compiled step, and blocks that use what is not theirs."""

import threading

import torch
from torch import nn
from torch._dynamo.backends.registry import lookup_backend
from torch._dynamo.utils import counters
from ways import adam, backward, run_ddp, train, way


def small():
    return nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 10))


def by_hand(ddp, optimizer, looks, step):
    losses = []
    for _ in range(7):
        optimizer.zero_grad()
        losses.append(backward(ddp))
        losses.append(looks(list(ddp.parameters())))
        step()
    return losses


def with_a_thread(graph, inputs):
    """Wait for a thread while code is compiled, as torch itself does where tqdm is installed."""
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()
    return lookup_backend("aot_eager")(graph, inputs)


@torch.compile(backend=with_a_thread)
def norm_of(grads):
    return torch.stack([g.norm() for g in grads]).norm()


@way(small, adam)
def norm(ddp, optimizer):
    return by_hand(ddp, optimizer, lambda params: norm_of([p.grad for p in params]), optimizer.step)


@torch.compile(backend="aot_eager")
def clip(params):
    for p in params:
        p.grad.clamp_(-0.01, 0.01)


@way(small, adam)
def clipped(ddp, optimizer):
    return by_hand(ddp, optimizer, clip, optimizer.step)


@way(small, adam)
def compiled_step(ddp, optimizer):
    return by_hand(ddp, optimizer, lambda _: None, torch.compile(optimizer.step, backend="aot_eager"))


@way(small, adam)
def step_within_a_function(ddp, optimizer):
    @torch.compile(backend="aot_eager", fullgraph=False)
    def step(optimizer=optimizer):
        optimizer.step()

    return by_hand(ddp, optimizer, lambda _: None, step)


class Block(nn.Module):
    """A parameter in a list, and Python between two graphs."""

    def __init__(self, others, breaks):
        super().__init__()
        self.own = nn.Linear(48, 48)
        self.others, self.breaks = others, breaks  # a list: not this module's

    def forward(self, hidden):
        hidden = torch.relu(self.own(hidden))
        if self.breaks:
            torch._dynamo.graph_break()
        return hidden + hidden @ self.others[0]


def reaching(breaks):
    last = nn.Linear(48, 48)
    block = Block([last.weight], breaks)
    block.compile(backend="aot_eager")
    return nn.Sequential(nn.Linear(32, 48), block, last, nn.Linear(48, 10))


def graphs_of(ddp, optimizer, steps):
    """Return losses, and how many graphs and breaks between them these steps have made."""
    counters.clear()
    losses = [train(ddp, optimizer) for _ in range(steps)]
    return losses, sum(counters["graph_break"].values()), counters["stats"]["unique_graphs"]


@way(lambda: reaching(breaks=False), adam)
def reaching_block(ddp, optimizer):
    return graphs_of(ddp, optimizer, 10)


@way(lambda: reaching(breaks=True), adam)
def reaching_block_in_two_graphs(ddp, optimizer):
    return graphs_of(ddp, optimizer, 5)


run_ddp()
