"""torch.compile of blocks one by one, of modules, of functions over gradients and parameters, and of a step.

Blocks come first: once more is compiled, updates are made within step().
"""

import threading

import torch
from torch import nn
from torch._dynamo.backends.registry import lookup_backend
from torch._dynamo.utils import counters
from torch.nn.parallel import DistributedDataParallel
from ways import adam, backward, loss_of, run_ddp, train, way


def graphs_since(*losses):
    """Return losses, and how many graphs and breaks between them there were; the next way counts anew."""
    found = sum(counters["graph_break"].values()), counters["stats"]["unique_graphs"]
    counters.clear()
    return losses, found


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(64)
        self.up, self.down = nn.Linear(64, 128), nn.Linear(128, 64)

    def forward(self, hidden):
        return hidden + self.down(nn.functional.gelu(self.up(self.norm(hidden))))


def two_blocks():
    """Compiled in both ways that torch has."""
    first, second = Normed(), torch.compile(Normed(), backend="aot_eager")
    first.compile(backend="aot_eager")
    return nn.Sequential(nn.Linear(32, 64), first, second, nn.Linear(64, 10))


@way(two_blocks, torch.optim.AdamW)
def blocks(ddp, optimizer):
    """Another size of batch has them compiled anew."""
    losses = []
    for iteration in range(10):
        size = 16 if iteration < 6 else 12
        optimizer.zero_grad()
        loss = loss_of(ddp, torch.randn(size, 32), torch.randint(10, (size,)))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return counters["frames"]["total"], graphs_since(*losses), optimizer.state_dict()


def with_a_block():
    return nn.Sequential(nn.Linear(32, 64), nn.Sequential(nn.Linear(64, 64), nn.GELU()), nn.Linear(64, 10))


def with_a_compiled_block():
    model = with_a_block()
    model[1].compile(backend="aot_eager")
    return model


@way(with_a_compiled_block, torch.optim.AdamW)
def block(ddp, optimizer):
    return graphs_since(*(train(ddp, optimizer) for _ in range(5)))


@way(
    with_a_block,
    torch.optim.AdamW,
    wrap=lambda model: DistributedDataParallel(torch.compile(model, backend="aot_eager")),
)
def module(ddp, optimizer):
    return graphs_since(*(train(ddp, optimizer) for _ in range(5)))


@way(with_a_block, torch.optim.AdamW)
def wrapper(ddp, optimizer):
    compiled = torch.compile(ddp, backend="aot_eager")
    return graphs_since(*(train(compiled, optimizer) for _ in range(5)))


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


@way(lambda: reaching(breaks=False), adam)
def reaching_block(ddp, optimizer):
    counters.clear()
    return graphs_since(*(train(ddp, optimizer) for _ in range(10)))


@way(lambda: reaching(breaks=True), adam)
def reaching_block_in_two_graphs(ddp, optimizer):
    return graphs_since(*(train(ddp, optimizer) for _ in range(5)))


run_ddp()
