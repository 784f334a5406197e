"""Optimizers that step in ways of their own: closures, states of before, hooks, and classes of the user's own."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook
from ways import adam, backward, batch, loss_of, run_ddp, train, way


@way(make=lambda params: torch.optim.LBFGS(params, lr=0.1, max_iter=4, history_size=4, line_search_fn=None))
def lbfgs(ddp, optimizer):
    """Its step() calls a closure many times."""
    losses = []
    for _ in range(3):
        held = batch()

        def closure(held=held):
            optimizer.zero_grad()
            loss = loss_of(ddp, *held)
            loss.backward()
            return loss

        losses.append(optimizer.step(closure).item())
    return losses


@way(make=lambda params: ZeroRedundancyOptimizer(params, optimizer_class=torch.optim.Adam, lr=1e-2))
def state_spread_over_ranks(ddp, optimizer):
    return [train(ddp, optimizer) for _ in range(7)]


@way(make=adam)
def state_held(ddp, optimizer):
    """From before: moments in a log, reset by hand, and shared out among the ranks."""
    seen, moments, state = [], [], None
    for iteration in range(12):
        train(ddp, optimizer)
        if iteration == 0:
            state = optimizer.state
            moments = [state[p]["exp_avg"] for p in ddp.parameters()]
        elif iteration % 3 == 0:
            seen += [moment.abs().sum().item() for moment in moments]
        elif iteration % 3 == 1:
            seen += [state[p]["step"].item() for p in ddp.parameters()]
            with torch.no_grad():
                for moment in moments:
                    moment.mul_(0.5)
        else:
            for each in optimizer.state.values():
                dist.all_reduce(each["exp_avg_sq"])
    return seen, optimizer.state_dict()


kept = {}


def with_dictionaries(params):
    """Return an optimizer whose dictionary of states, and whose rates in tensors, are kept from before its steps."""
    kept["betas"] = torch.tensor(0.9), torch.tensor(0.99)
    optimizer = torch.optim.Adam(params, lr=1e-2, betas=kept["betas"], foreach=False)
    kept["state"] = optimizer.state
    return optimizer


@way(make=with_dictionaries)
def dictionaries_held(ddp, optimizer):
    """States read, written and cleared by a dictionary, and rates changed in place."""
    seen, state, params = [], kept.pop("state"), list(ddp.parameters())[::-1]
    for iteration in range(12):
        train(ddp, optimizer)
        kept["betas"][0].mul_(0.99)
        if iteration < 3:
            seen += [state[p]["exp_avg"].sum().item() for p in params]
        elif iteration == 4:
            state.clear()
        elif iteration == 5:
            own = [state[p] for p in params]
            del state
        elif iteration > 8:
            for each in own:
                each["exp_avg"] = torch.ones_like(each["exp_avg_sq"])
    return seen, optimizer.state_dict()


class Wrapper(torch.optim.Adam):
    """Has all attributes of another optimizer, as Lightning's wrapper does."""

    def __init__(self, optimizer):
        self.__dict__.update(vars(optimizer))


@way(make=adam)
def wrapped(ddp, optimizer):
    seen, wrapper = [], Wrapper(optimizer)
    for _ in range(8):
        train(ddp, optimizer)
        seen += [state["exp_avg"].sum().item() for state in reversed(wrapper.state.values())]
    return seen


class Alike:
    """Has an optimizer's dictionary of attributes, and is none itself."""

    def __init__(self, optimizer):
        self.__dict__ = vars(optimizer)


@way(make=adam)
def state_without_asking(ddp, optimizer):
    """States read and written through the optimizer's attributes, fetched anew each time."""
    seen, alike = [], Alike(optimizer)
    for iteration in range(12):
        train(ddp, optimizer)
        if iteration % 3 == 1:
            seen += [state["exp_avg"].sum().item() for state in reversed(alike.state.values())]
        elif iteration % 3 == 2:
            for state in vars(optimizer)["state"].values():
                state["exp_avg_sq"].mul_(0.5)
                state["step"] = state["step"] - 1
    return seen, optimizer.state_dict()


def small():
    return nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 10))


class Lion(torch.optim.Optimizer):
    """Reads p.grad.data."""

    def __init__(self, params):
        super().__init__(params, {"lr": 1e-3})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                grad = p.grad.data
                moment = self.state[p].setdefault("moment", torch.zeros_like(p.data))
                p.data.add_(torch.sign(0.9 * moment + 0.1 * grad), alpha=-group["lr"])
                moment.mul_(0.99).add_(grad, alpha=0.01)


@way(small, Lion)
def own_optimizer(ddp, optimizer):
    return [train(ddp, optimizer) for _ in range(6)]


class Decayed(torch.optim.SGD):
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.data.mul_(0.999)
        return super().step(closure)


@way(small, lambda params: Decayed(params, lr=0.1, momentum=0.9))
def own_step(ddp, optimizer):
    return [train(ddp, optimizer) for _ in range(6)]


class ByNorm(torch.optim.SGD):
    """Keeps torch's step(), but for the part that collects the gradients."""

    def _init_group(self, group, params, grads, *others):
        sparse = super()._init_group(group, params, grads, *others)
        norm = sum(grad.norm() for grad in grads)
        grads[:] = [grad / norm for grad in grads]
        return sparse


@way(small, lambda params: ByNorm(params, lr=0.1))
def own_part_of_step(ddp, optimizer):
    return [train(ddp, optimizer) for _ in range(6)]


@way(small, lambda _: None)
def no_optimizer(ddp, _):
    """A plain loop that reads p.grad."""
    for _ in range(6):
        ddp.zero_grad()
        backward(ddp)
        with torch.no_grad():
            for p in ddp.module.parameters():
                p -= 0.1 * p.grad


class Old(torch.optim.SGD):
    """Keeps torch's step(), as does the next."""

    def zero_grad(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.grad.zero_()

    def state_dict(self, full=True):
        return super().state_dict()


@way(small, lambda params: Old(params, lr=1e-2))
def own_zero_grad(ddp, optimizer):
    return [train(ddp, optimizer) for _ in range(6)], optimizer.state_dict(full=False)


class Noted(torch.optim.Adam):
    def __init__(self, params):
        super().__init__(params, lr=1e-2)
        self.norms = []

    def zero_grad(self, *args, **kwargs):
        for group in self.param_groups:
            self.norms.extend(p.grad.norm().item() for p in group["params"] if p.grad is not None)
            self.norms.extend(p.norm().item() for p in group["params"])
        super().zero_grad(*args, **kwargs)

    def load_state_dict(self, state_dict, strict=True):
        super().load_state_dict(state_dict)


@way(small, Noted)
def own_log(ddp, optimizer):
    for iteration in range(6):
        train(ddp, optimizer)
        if iteration == 3:
            optimizer.load_state_dict(optimizer.state_dict(), strict=False)
    return optimizer.norms, optimizer.state_dict()


@way()
def hooks(ddp, optimizer):
    """Around step(), on one optimizer and on all."""
    seen = []

    def before(optimizer, args, kwargs):
        seen.append(ddp.module[0].weight.grad.sum().item())

    def after(optimizer, args, kwargs):
        seen.append(ddp.module[0].weight.sum().item())

    for _ in range(4):
        train(ddp, optimizer)
    handles = [optimizer.register_step_pre_hook(before), optimizer.register_step_post_hook(after)]
    for _ in range(4):
        train(ddp, optimizer)
    for handle in handles:
        handle.remove()
    handle = register_optimizer_step_post_hook(after)
    for _ in range(4):
        train(ddp, optimizer)
    handle.remove()
    return seen, optimizer.state_dict()


@way(gradient_as_bucket_view=True)
def sharpness_aware(ddp, optimizer):
    """A step by a gradient of elsewhere, and by the first one, which torch has overwritten with it."""
    params, changes = list(ddp.parameters()), []
    for _ in range(12):
        inputs, labels = batch()
        optimizer.zero_grad()
        loss_of(ddp, inputs, labels).backward()
        first = [p.grad for p in params]
        with torch.no_grad():
            ascent = [grad * 0.1 for grad in first]
            torch._foreach_add_(params, ascent)
        optimizer.zero_grad()
        loss_of(ddp, inputs, labels).backward()
        changes += [(p.grad - grad).norm().item() for p, grad in zip(params, first, strict=True)]
        with torch.no_grad():
            torch._foreach_sub_(params, ascent)
            torch._foreach_add_([p.grad for p in params], first, alpha=0.1)
        optimizer.step()
    return changes


others = []


def by_dimensions(params):
    """Return one optimizer for matrices, with others for vectors, for all, and for two more modules and a parameter."""
    params = list(params)
    first, second = (DistributedDataParallel(nn.Linear(*size)) for size in ((32, 48), (48, 10)))
    temperature = nn.Parameter(torch.ones(1))
    groups = [{"params": first.parameters(), "lr": 1e-2}, {"params": [temperature, *second.parameters()]}]
    others.extend([torch.optim.SGD([p for p in params if p.ndim == 1], lr=0.1), torch.optim.SGD(params, lr=1e-3)])
    others.extend([torch.optim.AdamW(groups, lr=1e-3), first, second, temperature])
    return adam([p for p in params if p.ndim > 1])


@way(make=by_dimensions)
def several_for_one_module(ddp, weights):
    biases, every, joint, first, second, temperature = others
    losses = []
    for iteration in range(8):
        inputs, labels = batch()
        loss = loss_of(ddp, inputs, labels)
        other = nn.functional.cross_entropy(second(first(inputs).relu()) * temperature, labels)
        for optimizer in (weights, biases, joint):
            optimizer.zero_grad()
        loss.backward()
        other.backward()
        dist.all_reduce(temperature.grad)
        biases.step()
        weights.step()
        if iteration % 2:
            every.step()
        joint.step()
        losses += [loss.item(), other.item()]
    states = [optimizer.state_dict() for optimizer in (weights, biases, joint)]
    return losses, states, first, second, temperature


run_ddp()
