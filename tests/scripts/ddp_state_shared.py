"""Optimizers whose state is in one memory: `load_state_dict` copies no tensor, and a program may share one itself."""

import torch
from torch.nn.parallel import DistributedDataParallel
from ways import backward, classifier, run_ddp, train, way


def adamw(params):
    return torch.optim.AdamW(params, lr=1e-2)


def step(model, optimizer):
    loss = backward(model)
    optimizer.step()
    optimizer.zero_grad()
    return loss


def another(optimizer, make):
    """Return another model, and its optimizer with the state of `optimizer`."""
    other = DistributedDataParallel(classifier())
    others_optimizer = make(other.parameters())
    others_optimizer.load_state_dict(optimizer.state_dict())
    return other, others_optimizer


def both(model, optimizer, make):
    losses = [step(model, optimizer) for _ in range(4)]
    other, others_optimizer = another(optimizer, make)
    losses += [step(other, others_optimizer) for _ in range(4)]
    losses += [step(model, optimizer) for _ in range(4)]
    for _ in range(4):
        losses += [step(model, optimizer), step(other, others_optimizer)]
    return losses, list(other.parameters())


@way(classifier, adamw)
def one_after_another(model, optimizer):
    return both(model, optimizer, adamw)


@way()
def momentum(model, optimizer):
    def sgd(params):
        return torch.optim.SGD(params, lr=0.1, momentum=0.9)

    return both(model, optimizer, sgd)


@way(classifier, adamw)
def loaded_later(model, optimizer):
    """Both have stepped before, and the other one's averages are on their way when its state is replaced."""
    other = DistributedDataParallel(classifier())
    others_optimizer = adamw(other.parameters())
    losses = []
    for _ in range(3):
        losses += [step(model, optimizer), step(other, others_optimizer)]
    others_optimizer.load_state_dict(optimizer.state_dict())
    for _ in range(4):
        losses += [step(other, others_optimizer), step(model, optimizer)]
    return losses, list(other.parameters())


@way(classifier, adamw)
def local_model(model, optimizer):
    """The other model is no one else's: its optimizer steps at once."""
    losses = [step(model, optimizer) for _ in range(3)]
    with torch.random.fork_rng():
        torch.manual_seed(7)
        other = classifier()
    others_optimizer = adamw(other.parameters())
    others_optimizer.load_state_dict(optimizer.state_dict())
    inputs = torch.ones(16, 32)
    for _ in range(4):
        losses.append(step(model, optimizer))
        other(inputs).square().mean().backward()
        others_optimizer.step()
    return losses


@way(classifier, adamw)
def one_step_for_all(model, optimizer):
    """The parameters of one optimizer count their steps in one tensor."""
    losses = [train(model, optimizer) for _ in range(3)]
    steps = [state["step"] for state in optimizer.state.values()]
    for state in optimizer.state.values():
        state["step"] = steps[0]
    return losses + [step(model, optimizer) for _ in range(4)]


run_ddp()
