"""Optimizers whose state is in one memory: `load_state_dict` copies no tensor."""

import byteps.torch as bps
from ways import adam, backward, classifier, run_byteps, sgd, way


def step(model, optimizer):
    loss = backward(model)
    optimizer.step()
    optimizer.zero_grad()
    return loss


def both(model, optimizer, make, prefix):
    losses = [step(model, optimizer) for _ in range(4)]
    other = classifier()
    named = [(f"{prefix}.{name}", param) for name, param in other.named_parameters()]
    others_optimizer = bps.DistributedOptimizer(make(other.parameters()), named_parameters=named)
    bps.broadcast_parameters(other.state_dict(), root_rank=0, prefix=f"{prefix}.")
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
def one_count_for_all(model, optimizer):
    losses = [step(model, optimizer) for _ in range(3)]
    steps = [state["step"] for state in optimizer.state.values()]
    for state in optimizer.state.values():
        state["step"] = steps[0]
    return losses + [step(model, optimizer) for _ in range(4)]


run_byteps()
