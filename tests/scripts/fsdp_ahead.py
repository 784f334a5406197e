"""Parameters that a program writes, or gathers, while Prophet gathers them ahead of their turn."""

import torch
from sharded import backward, layers, loss_of, parts, step
from torch import nn
from torch.distributed.fsdp import fully_shard
from ways import run_fsdp, way


@torch.library.custom_op("scripts::follow", mutates_args=("key",))
def follow(key: torch.Tensor, query: torch.Tensor) -> None:
    key.lerp_(query, 0.3)


WRITES = (
    lambda key, query: key.lerp_(query, 0.3),
    lambda key, query: torch._foreach_lerp_([key], [query], 0.3),
    lambda key, query: torch.lerp(key, query, 0.3, out=key),
    lambda key, query: torch.ops.aten.lerp.Scalar_out(key.to_local(), query.to_local(), 0.3, out=key.to_local()),
    lambda key, query: torch.ops.scripts.follow(key.to_local(), query.to_local()),
)


class Momentum(nn.Module):
    """The second encoder follows the first, within the forward pass, as in MoCo. `write` writes a parameter."""

    def __init__(self):
        super().__init__()
        self.write = WRITES[0]
        self.queries, self.keys = (nn.Sequential(*parts()) for _ in range(2))
        self.keys.requires_grad_(False)
        self.head = nn.Linear(40, 7)

    def forward(self, values):
        queries = self.queries(values)
        with torch.no_grad():
            for query, key in zip(self.queries.parameters(), self.keys.parameters(), strict=True):
                self.write(key, query)
            keys = self.keys(values)
        return self.head(queries) * self.head(keys)


@way(lambda: fully_shard(Momentum()))
def written_in_forward(model, optimizer):
    losses = []
    for write in (*WRITES, *WRITES):
        model.write = write
        losses.append(step(model, optimizer))
    return losses


class Parts(nn.Module):
    fails = False

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = fully_shard(nn.Sequential(*parts())), nn.Sequential(*parts())
        self.head = nn.Linear(40, 7)

    def forward(self, values):
        values = self.encoder(values)
        for layer in self.decoder:
            values = layer(values).relu()
            if self.fails:
                raise ValueError("this batch is bad")
        return self.head(values)


@way(lambda: fully_shard(Parts()))
def asked_for_by_hand(model, optimizer):
    """A layer is gathered by hand, before a pass of the encoder alone, and before an update."""
    seen = []
    for iteration in range(8):
        backward(model)
        layer = model.decoder[1]
        if iteration % 2:
            layer.unshard(async_op=True)
        optimizer.step()
        optimizer.zero_grad()
        handle = None if iteration % 2 else layer.unshard(async_op=True)
        with torch.no_grad():
            seen.append(model.encoder(torch.ones(2, 40)))
        if handle is not None:
            handle.wait()
            seen.append(layer.weight.detach().clone())
            layer.reshard()
    return seen


@way(lambda: fully_shard(Parts()))
def failed_before_a_step(model, optimizer):
    """The second batch of an accumulation fails, and the step is made with the first."""
    losses = []
    for iteration in range(8):
        losses.append(backward(model))
        model.fails = iteration % 3 == 2
        try:
            loss_of(model).backward()
        except ValueError:
            model.fails = False
        optimizer.step()
        optimizer.zero_grad()
    return losses


def leads(place, others, since):
    """Return a program in which a layer gathers others ahead from an iteration on, and evaluations leave what is
    gathered.
    """

    def run(model, optimizer):
        seen = []
        for number in range(8):
            if number == since:
                model[place].set_modules_to_forward_prefetch([model[other] for other in others])
            optimizer.zero_grad()
            backward(model)
            if number % 2:
                with torch.no_grad():
                    seen.append(model(torch.ones(2, 40)).sum().item())
            optimizer.step()
        return seen

    run.__name__ = f"{place}_leads_{'_and_'.join(map(str, others))}"
    return run


for place, others, since in ((2, [0], 3), (1, [0], 2), (3, [0, 1], 4), (2, [3, 1], 3)):
    way(layers)(leads(place, others, since))


run_fsdp()
