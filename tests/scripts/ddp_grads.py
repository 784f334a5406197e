"""`.grad` read, written, replaced, dropped, kept and put into another parameter's: in backward and around step()."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from ways import backward, batch, classifier, loss_of, run_ddp, train, way


@way()
def handled(ddp, optimizer):
    """Before and after step()."""
    params, seen = list(ddp.parameters()), []
    for iteration in range(16):
        backward(ddp)
        case = iteration % 8
        if case == 0:
            seen.append(params[0].grad[0, 0].item())
            params[1].grad.mul_(0.5)
        elif case == 1:
            params[2].grad = torch.ones_like(params[2])
            params[3].grad = params[3].grad * 2
        elif case == 2:
            params[0].grad = None
            params[-1].grad = None
        elif case == 3:
            # Taken away, and looked at and put back later.
            kept = [p.grad for p in params]
            for p in params:
                p.grad = None
            optimizer.step()
            for p, grad in zip(params, kept, strict=True):
                p.grad = grad
        elif case == 4:
            kept = [p.grad for p in params]
        elif case == 5:
            seen.append(torch.cat([p.grad.flatten() for p in params]).norm().item())
        elif case == 6:
            seen.append(nn.utils.parameters_to_vector([p.grad for p in params]).sum().item())
            with torch.no_grad():
                params[0].add_(params[0].grad, alpha=-0.01)
        elif case == 7:
            seen.append(sum(float(p.grad.numpy().sum()) for p in params))
        optimizer.step()
        optimizer.zero_grad()
        if case == 4:
            seen += [grad.sum().item() for grad in kept]
    return seen, optimizer.state_dict()


def adamw(params):
    return torch.optim.AdamW(params, lr=1e-2, weight_decay=0.1)


def small(module, *_):
    for p in module.parameters():
        if p.grad is not None:
            p.grad.clamp_(-1e-4, 1e-4)


def hooked():
    model = classifier()
    for layer in (model[2], model[4]):
        layer.register_full_backward_hook(small)
    return model


@way(hooked, adamw)
def written_within_backward(ddp, optimizer):
    """After the gradient has left."""
    return [train(ddp, optimizer) for _ in range(8)], optimizer.state_dict()


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(32, 64), nn.Linear(32, 64)

    def forward(self, inputs):
        return self.first(inputs), self.second(inputs)


@way(Two, adamw)
def written_between_passes(ddp, optimizer):
    """Of one round."""
    for iteration in range(8):
        optimizer.zero_grad()
        first, second = ddp(batch()[0])
        (first - 1).square().mean().backward()
        if iteration % 3 == 1:
            ddp.zero_grad(set_to_none=iteration % 2 == 0)
        elif iteration % 3 == 2:
            nn.utils.clip_grad_norm_(ddp.parameters(), 0.01)
        second.square().mean().backward()
        optimizer.step()
    return optimizer.state_dict()


class Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx, inputs, step):
        return torch.round(inputs / step) * step

    @staticmethod
    def backward(ctx, grad):
        return grad, None


class Quantized(nn.Module):
    """Has a parameter without a gradient."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(32, 32), nn.Linear(32, 10)
        self.step = nn.Parameter(torch.full((32,), 0.1))

    def forward(self, inputs):
        return self.head(Rounded.apply(self.body(inputs), self.step))


@way(Quantized, adamw)
def absent(ddp, optimizer):
    losses, seen = [], []
    for _ in range(8):
        optimizer.zero_grad()
        losses.append(backward(ddp))
        seen.append([p.grad is None for p in ddp.parameters()])
        optimizer.step()
    return losses, seen, optimizer.state_dict()


outsider = nn.Parameter(torch.zeros(32, 32))


def same(first, second, third):
    second.weight.grad = first.weight.grad


def views(first, second, third):
    third.weight.grad = first.weight.grad[:10]
    first.bias.grad = second.bias.grad.detach()


def exchanged(first, second, third):
    first.weight.grad, second.weight.grad = second.weight.grad, first.weight.grad


def elsewhere(first, second, third):
    outsider.grad = first.weight.grad


def frozen_between(first, second, third):
    """Nothing is borrowed: one rank freezes a layer between forward and backward."""


def borrowing(borrow):
    """Have a model trained in which `borrow` puts gradients into other parameters'."""

    def borrowed(ddp, optimizer):
        layers = ddp.module
        for iteration in range(6):
            optimizer.zero_grad()
            loss = loss_of(ddp, *batch())
            layers[0].requires_grad_(not (borrow is frozen_between and iteration % 2 and dist.get_rank()))
            loss.backward()
            layers[0].requires_grad_()
            if iteration % 3:
                borrow(*layers)
            optimizer.step()
        return outsider.detach().clone()

    borrowed.__name__ = borrow.__name__
    way(
        lambda: nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 10)),
        lambda params: torch.optim.SGD([*params, outsider], lr=0.1, momentum=0.9),
    )(borrowed)


for borrow in (same, views, exchanged, elsewhere, frozen_between):
    borrowing(borrow)


@way(lambda: nn.Linear(32, 10))
def borrowed_by_another_optimizer(lender, first):
    """One optimizer updates by the gradients of another one's module, and one has parameters in the same memory."""
    borrower, third = (DistributedDataParallel(nn.Linear(32, 10)) for _ in range(2))
    with torch.no_grad():
        lender.module.bias[0] = 0.1
    rate = torch.optim.SGD(borrower.parameters(), lr=lender.module.bias.data[0], foreach=False)
    views = [nn.Parameter(p.data) for p in lender.parameters()]
    second, again = (
        torch.optim.SGD(params, lr=0.1, momentum=0.9)
        for params in (borrower.parameters(), [*third.parameters(), *views])
    )
    for iteration in range(12):
        modules = [lender, third] if iteration > 3 else [lender, borrower, third]
        for module in (lender, borrower, third):
            module.zero_grad()
        inputs, labels = batch()
        sum(loss_of(module, inputs, labels) for module in modules).backward()
        if iteration % 2:
            first.step()
        if iteration > 3:
            for ours, theirs in zip(borrower.parameters(), lender.parameters(), strict=True):
                ours.grad = theirs.grad
        second.step()
        rate.step()
        if iteration % 2 == 0:
            first.step()
        for view in views:
            view.grad = torch.full_like(view, 0.1)
        again.step()
    return borrower, third


run_ddp()
