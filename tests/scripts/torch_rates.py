"""Changes to how the optimizer steps: schedules, hyper-parameters, state, hooks, averages; a signal's handler; and
optimizers whose state is in one memory: `load_state_dict` copies no tensor, and a program may share one itself.
"""

import copy
import itertools
import signal
import warnings

import byteps.torch as bps
import torch
from torch.optim import lr_scheduler
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from ways import adam, backward, classifier, run_byteps, sgd, train, way

warnings.simplefilter("ignore", UserWarning)  # a schedule thinks that the inner optimizer never stepped
betas, rate = [0.9, 0.999], torch.tensor(1e-2)
inner = []


@way(make=lambda params: torch.optim.Adam(params, lr=rate, betas=betas))
def changed_in_place(model, optimizer):
    """Hyper-parameters are lists and tensors of the program's own."""
    for iteration in range(6):
        train(model, optimizer)
        betas[0] = 0.5 + 0.05 * iteration
        rate.mul_(0.8)


def scheduled_first(params):
    inner.append(torch.optim.SGD(params, lr=0.01, momentum=0.9))
    inner.append(lr_scheduler.OneCycleLR(inner[0], max_lr=0.2, total_steps=10))
    return inner[0]


@way(make=scheduled_first)
def scheduled_before_it_was_wrapped(model, optimizer):
    """The schedule sets learning rate and momentum."""
    rates = []
    for _ in range(8):
        train(model, optimizer)
        inner[1].step()
        rates.append(inner[0].param_groups[0]["lr"])
    return rates


@way(make=lambda params: torch.optim.SGD(params, lr=0.2, momentum=0.9))
def schedules(model, optimizer):
    """A warm-up and then cosine, and the rate lowered when the loss stays where it is."""
    warmup = lr_scheduler.LinearLR(optimizer, 0.1, total_iters=3)
    cosine = lr_scheduler.CosineAnnealingLR(optimizer, T_max=6)
    scheduler = lr_scheduler.SequentialLR(optimizer, [warmup, cosine], milestones=[3])
    plateau = lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.7)
    rates = []
    for iteration in range(8):
        train(model, optimizer)
        scheduler.step()
        if iteration % 3 == 2:
            plateau.step(1.0)
        rates.append(optimizer.param_groups[0]["lr"])
    return rates


@way(make=adam)
def layer_begun_anew(model, optimizer):
    """A layer is reset, and the optimizer forgets what it knew of the layer."""
    averages = []
    for iteration in range(8):
        train(model, optimizer)
        averages.append(float(optimizer.state[model[2].weight]["exp_avg"].abs().sum()))
        if iteration == 4:
            torch.manual_seed(7)
            model[2].reset_parameters()
            for p in (model[2].weight, model[2].bias):
                optimizer.state[p]["exp_avg"].zero_()
                optimizer.state[p]["exp_avg_sq"].zero_()
            torch.manual_seed(200 + bps.rank())
    return averages


@way(make=adam)
def state_cleared_by_hand(model, optimizer):
    """By the dictionary that the script has kept."""
    state, known = optimizer.state, []
    for iteration in range(6):
        train(model, optimizer)
        known.append(len(state))
        if iteration % 2:
            state.clear()
    return known


@way()
def averages_in_place(model, optimizer):
    """The loss averaged over all workers after each step."""
    averages = []
    for _ in range(6):
        average = torch.tensor(train(model, optimizer))
        bps.synchronize(bps.byteps_push_pull(average, average=True, name="loss"))
        averages.append(average.item())
    return averages


@way()
def averages_in_new_tensors(model, optimizer):
    """Metrics are averaged under one name, as BytePS's examples do."""
    averages = []
    for step in range(6):
        loss = torch.tensor(train(model, optimizer))
        averages.append(bps.push_pull(loss, name="average loss").item())
        ranks = bps.push_pull(torch.full((1000,), float(step + bps.rank())), average=False, name="sum of ranks")
        assert ranks.tolist() == [2.0 * step + 1.0] * 1000, ranks
    return averages


@way()
def weights_sent_again(model, optimizer):
    """The first worker's weights are sent again, in place, as local SGD does now and then."""
    for iteration in range(6):
        train(model, optimizer)
        if iteration % 2 == 1:
            bps.broadcast_parameters(model.state_dict(), root_rank=0, prefix="again")


@way()
def hooks(model, optimizer):
    """Hooks around the steps, of one optimizer and of all, decay the rate and the weights."""
    seen = []

    def before(optimizer, args, kwargs):
        optimizer.param_groups[0]["lr"] *= 0.95

    def after(optimizer, args, kwargs):
        with torch.no_grad():
            for p in model.parameters():
                p.mul_(0.99)

    def count(optimizer, args, kwargs):
        seen.append(len(seen))

    for make in (
        lambda: (),
        lambda: (optimizer.register_step_pre_hook(before), optimizer.register_step_post_hook(after)),
        lambda: (register_optimizer_step_pre_hook(count), register_optimizer_step_post_hook(count)),
        lambda: (),
    ):
        handles = make()
        for _ in range(3):
            train(model, optimizer)
        for handle in handles:
            handle.remove()
    return seen, optimizer.param_groups[0]["lr"]


@way(make=adam)
def saved_by_a_signal(model, optimizer):
    """A handler keeps a copy of model and optimizer, as in jobs that are told to leave a machine. It comes every few
    milliseconds, wherever training is just then.
    """
    copies, shapes, over = [], set(), False
    pauses = itertools.cycle([0.001, 0.0023, 0.0017, 0.0041, 0.0005])

    def save(*_):
        kept = optimizer.state_dict()
        shapes.add(tuple(len(group["params"]) for group in kept["param_groups"]))
        copies.append((copy.deepcopy(model.state_dict()), copy.deepcopy(kept)))
        del copies[:-2]
        if not over:
            signal.setitimer(signal.ITIMER_REAL, next(pauses))

    before = signal.signal(signal.SIGALRM, save)
    signal.setitimer(signal.ITIMER_REAL, next(pauses))
    for _ in range(40):
        train(model, optimizer)
    over = True  # one that has come, and is not handled yet, begins no other
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)
    return optimizer.state_dict(), sorted(shapes)


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
