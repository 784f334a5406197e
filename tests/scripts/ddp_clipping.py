"""Clipping in every iteration, in all ways that there are, and with something else beside it now and then."""

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_
from ways import loss_of, run_ddp, way


def small():
    return nn.Sequential(nn.Linear(16, 48), nn.ReLU(), nn.Linear(48, 32), nn.ReLU(), nn.Linear(32, 10))


def batch():
    return torch.randn(16, 16), torch.randint(10, (16,))


def adamw(params):
    return torch.optim.AdamW(params, lr=1e-2)


halves = []


def by_halves(params):
    params = list(params)
    halves.extend([params[:3], params[3:]])
    return torch.optim.AdamW(halves[0], lr=1e-2), torch.optim.SGD(halves[1], lr=1e-2, momentum=0.9)


@way(small, by_halves)
def by_norms_of_several_orders(ddp, optimizers):
    """Each for some iterations, with two optimizers for one model."""
    seen = []
    for iteration in range(50):
        order = ("inf", 1.0, 2.0, 3.0, 2)[iteration // 5 % 5]
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss_of(ddp, *batch()).backward()
        if iteration % 2:
            seen.append(clip_grad_norm_(ddp.parameters(), 0.05, norm_type=order))
        for half, optimizer in zip(halves, optimizers, strict=True):
            if not iteration % 2:
                seen.append(clip_grad_norm_(half, 0.05, norm_type=order))
            optimizer.step()
    return seen, [optimizer.state_dict() for optimizer in optimizers]


@way(small, adamw)
def less_after_more(ddp, optimizer):
    """By norm for some iterations, so that averages are expected to be looked at; then iterations that do less."""
    params, seen, kept = list(ddp.parameters()), [], []
    for iteration in range(24):
        optimizer.zero_grad(set_to_none=iteration % 2 == 0)
        loss_of(ddp, *batch()).backward()
        case = iteration % 12
        if case < 6:
            seen.append(clip_grad_norm_(params, 0.3).item())
        else:
            seen.append(params[0].grad.norm().item())  # the last that is generated
        if case == 7:
            for p in params[1:]:
                p.grad.mul_(0.5)
        elif case == 8:
            kept.append([p.grad for p in params])
        elif case == 9:
            params[-1].grad = None
        elif case == 10:
            params[-2].grad = torch.ones_like(params[-2])
        elif case == 11:  # as averages are, on all ranks alike
            for p in params[2:4]:
                p.grad = p.grad.clone()
        optimizer.step()
    return seen, [grad.double().sum().item() for grads in kept for grad in grads], optimizer.state_dict()


def raised(params):
    try:
        clip_grad_norm_(params, 0.3, error_if_nonfinite=True)
    except RuntimeError as error:
        return [str(error)]
    return []


@way(small, adamw)
def by_norm(ddp, optimizer):
    """In turn: what is clipped, by what, and what is looked at besides."""
    params, seen = list(ddp.parameters()), []
    for iteration in range(60):
        inputs, labels = batch()
        case = iteration % 20
        optimizer.zero_grad(set_to_none=iteration % 3 > 0)
        if case == 18:
            with ddp.no_sync():
                loss_of(ddp, inputs * 2, labels).backward()
        loss = loss_of(ddp, inputs, labels)
        if case == 11:
            loss = loss * (float("inf") if iteration == 11 else 1e30)
        loss.backward()
        if case in (0, 1, 2, 3):
            seen.append(clip_grad_norm_(ddp.parameters(), 0.3))
        elif case == 4:
            clip_grad_norm_(params, 1e9)  # which scales nothing
        elif case == 5:
            seen.append(clip_grad_norm_(params, 0.3, norm_type=float("inf")))
        elif case == 6:
            seen += [clip_grad_norm_(params[:2], 0.1), clip_grad_norm_(params[2:], 0.2)]
        elif case == 7:
            seen += [clip_grad_norm_(params, 0.3), clip_grad_norm_(params, 0.1)]
        elif case == 8:
            seen.append(clip_grad_norm_(params, 0.3))
            seen += [p.grad.sum() for p in params]
        elif case == 9:
            seen.append(params[-1].grad.norm())
            seen.append(clip_grad_norm_(params, 0.3))
        elif case == 10:
            seen.append(clip_grad_norm_(params, 0.3, foreach=False))
            params[0].grad *= 0.5
        elif case == 11:
            seen += raised(params)
            for p in params:
                p.grad = torch.zeros_like(p)
        elif case == 12:
            clip_grad_norm_(params, 0.3)
            optimizer.zero_grad()  # what was clipped goes, and the step is made with none
        elif case == 13:
            seen.append(nn.utils.get_total_norm([p.grad for p in params]))
            nn.utils.clip_grads_with_norm_(params, 0.3, seen[-1])
        elif case == 14:
            seen.append(clip_grad_norm_(params[0], 0.3))
        elif case == 15:
            with torch.enable_grad():
                seen.append(clip_grad_norm_(iter(params), torch.tensor(0.3)))
        elif case == 16:
            params[2].grad = None
            seen.append(clip_grad_norm_(params, 0.3))
        elif case == 17:
            seen.append(clip_grad_norm_([*params, params[0]], 0.3))
        elif case == 18:
            seen.append(clip_grad_norm_(params, 0.3))  # of two passes together
        elif case == 19:
            loss_of(ddp, inputs * 2, labels).backward()  # a second round on top of the first
            seen.append(clip_grad_norm_(params, 0.3))
        optimizer.step()
    return seen, optimizer.state_dict()


@way(small, adamw)
def by_value(ddp, optimizer):
    """Alone, beside other ways to clip, and before gradients are looked at."""
    params, seen = list(ddp.parameters()), []
    for iteration in range(48):
        case = iteration % 12
        optimizer.zero_grad(set_to_none=iteration % 3 > 0)
        loss = loss_of(ddp, *batch())
        if case == 11:
            loss = loss * (float("inf") if iteration == 11 else 1e30)
        loss.backward()
        nn.utils.clip_grad_value_(ddp.parameters(), 0.01)
        if case == 5:
            seen.append(clip_grad_norm_(params, 0.02))
        elif case == 6:
            nn.utils.clip_grad_value_(params, 0.005)
        elif case == 7:
            seen += [p.grad.abs().max() for p in params]
        elif case == 8:
            nn.utils.clip_grad_value_(params[0], 0.005, foreach=False)
        elif case == 9:
            params[0].grad *= 0.5
        elif case == 10:
            optimizer.zero_grad()
        elif case == 11:
            seen += [p.grad.isnan().sum() for p in params]
            for p in params:
                p.grad = torch.zeros_like(p)
        optimizer.step()
    return seen, optimizer.state_dict()


run_ddp()
