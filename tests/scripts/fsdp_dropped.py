"""Models that a program drops after a step, and gradients that it clears, while it keeps this rank's parts of them."""

import gc

from sharded import adamw, backward, layers
from torch._subclasses.fake_tensor import FakeTensorMode
from ways import run_fsdp, way


def last_step(model, optimizer, keep):
    """Make a step of a model for the last time. Return what `keep` returns before it."""
    optimizer.zero_grad()
    backward(model)
    kept = keep(model, optimizer)
    optimizer.step()
    return kept


KEEPS = (
    lambda model, optimizer: [param._local_tensor.view(-1) for param in model.parameters()],
    lambda model, optimizer: [moments["exp_avg"]._local_tensor.view(-1) for moments in optimizer.state.values()],
    lambda model, optimizer: [model[1].weight, model[4].bias],
)


@way(layers, adamw)
def dropped(model, optimizer):
    """Garbage is collected with and without fake tensors, as in the middle of DTensor's calls."""
    seen = []
    for place, keep in enumerate(2 * KEEPS):
        other = layers()
        others_optimizer = adamw(other.parameters())
        for _ in range(2):
            last_step(other, others_optimizer, lambda *_: None)
        seen.append(last_step(other, others_optimizer, keep))
        del other, others_optimizer
        if place % 2:
            with FakeTensorMode():
                gc.collect()
        gc.collect()
        last_step(model, optimizer, lambda *_: None)
    return [[getattr(each, "_local_tensor", each).detach().sum().item() for each in kept] for kept in seen]


@way(layers, adamw)
def gradients_cleared(model, optimizer):
    """Parts of gradients are kept; the gradients are cleared before or after the step."""
    seen = []
    for iteration in range(8):
        backward(model)
        seen.append([param.grad._local_tensor for param in model.parameters()])
        if iteration % 3 == 0:
            optimizer.zero_grad()
        optimizer.step()
        optimizer.zero_grad()
    return seen


run_fsdp()
