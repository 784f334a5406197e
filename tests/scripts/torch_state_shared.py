"""Optimizers whose state is in one memory: `load_state_dict` copies no tensor, and a program may share one itself."""

import byteps.torch as bps
import torch
from ways import adam, backward, classifier, run_byteps, sgd, way


def step(model, optimizer):
    loss = backward(model)
    optimizer.step()
    optimizer.zero_grad()
    return loss


def another(make, prefix):
    """Return another model and its optimizer."""
    other = classifier()
    named = [(f"{prefix}.{name}", param) for name, param in other.named_parameters()]
    others_optimizer = bps.DistributedOptimizer(make(other.parameters()), named_parameters=named)
    bps.broadcast_parameters(other.state_dict(), root_rank=0, prefix=f"{prefix}.")
    return other, others_optimizer


def both(model, optimizer, make, prefix):
    losses = [step(model, optimizer) for _ in range(4)]
    other, others_optimizer = another(make, prefix)
    others_optimizer.load_state_dict(optimizer.state_dict())
    losses += [step(other, others_optimizer) for _ in range(4)]
    losses += [step(model, optimizer) for _ in range(4)]
    for _ in range(4):
        losses += [step(model, optimizer), step(other, others_optimizer)]
    return losses, list(other.parameters())


@way(classifier, adam)
def counts_and_moments(model, optimizer):
    return both(model, optimizer, adam, "other of adam")


@way(classifier, sgd)
def momentum(model, optimizer):
    return both(model, optimizer, sgd, "other of sgd")


@way(classifier, adam)
def loaded_later(model, optimizer):
    """Both have stepped before, and the other one's averages are on their way when its state is replaced."""
    other, others_optimizer = another(adam, "loaded later")
    losses = []
    for _ in range(3):
        losses += [step(model, optimizer), step(other, others_optimizer)]
    others_optimizer.load_state_dict(optimizer.state_dict())
    for _ in range(4):
        losses += [step(other, others_optimizer), step(model, optimizer)]
    return losses, list(other.parameters())


@way(classifier, adam)
def local_model(model, optimizer):
    """The other model is no one else's: its optimizer steps at once."""
    losses = [step(model, optimizer) for _ in range(3)]
    with torch.random.fork_rng():
        torch.manual_seed(7)
        other = classifier()
    others_optimizer = adam(other.parameters())
    others_optimizer.load_state_dict(optimizer.state_dict())
    inputs = torch.ones(16, 32)
    for _ in range(4):
        losses.append(step(model, optimizer))
        other(inputs).square().mean().backward()
        others_optimizer.step()
    return losses


@way(classifier, adam)
def one_count_for_all(model, optimizer):
    """The parameters of one optimizer count their steps in one tensor."""
    losses = [step(model, optimizer) for _ in range(3)]
    steps = [state["step"] for state in optimizer.state.values()]
    for state in optimizer.state.values():
        state["step"] = steps[0]
    return losses + [step(model, optimizer) for _ in range(4)]


run_byteps()
