"""Parameters that the script took before training are read or written after each step, and gradients are looked at
after it, kept, or cleared by the script itself.
"""

import numpy as np
import torch
from torch import nn
from torch.utils import dlpack
from ways import adam, backward, batch, loss_of, run_byteps, train, way


@way(make=lambda params: torch.optim.RMSprop(params, lr=1e-2))
def clamped_by_data(model, optimizer):
    params = list(model.parameters())
    for _ in range(6):
        train(model, optimizer)
        for p in params:
            p.data.clamp_(-0.05, 0.05)


@way()
def data_from_before(model, optimizer):
    data, sums = [p.data for p in model.parameters()], []
    for _ in range(6):
        train(model, optimizer)
        sums.append([float(values.sum()) for values in data])
        for values in data:
            values.clamp_(-0.05, 0.05)
    return sums


@way()
def decay_by_an_operator(model, optimizer):
    weights = [p for p in model.parameters() if p.dim() > 1]
    for _ in range(6):
        train(model, optimizer)
        with torch.no_grad():
            for p in weights:
                p -= 0.05 * p


@way()
def nested_tensors(model, optimizer):
    weights, sums = [p for p in model.parameters() if p.dim() > 1], []
    for _ in range(6):
        train(model, optimizer)
        sums.append(torch.nested.nested_tensor(weights).to_padded_tensor(0.0).sum().item())
    return sums


@way()
def moving_average_foreach(model, optimizer):
    params = list(model.parameters())
    shadow = [p.detach().clone() for p in params]
    for _ in range(6):
        train(model, optimizer)
        with torch.no_grad():
            torch._foreach_lerp_(shadow, params, 0.1)
    return shadow


@way()
def norms_and_momentum(model, optimizer):
    named, log = list(model.named_parameters()), []
    for _ in range(6):
        train(model, optimizer)
        log.append({n: [p.norm().item(), float(optimizer.state[p]["momentum_buffer"].norm())] for n, p in named})
    return log


@way()
def numpy_arrays(model, optimizer):
    params, read = list(model.parameters()), []
    for _ in range(6):
        train(model, optimizer)
        read.append([np.abs(p.detach().numpy()).sum() for p in params])
    return read


@way()
def numpy_arrays_from_before(model, optimizer):
    views, read = [p.detach().numpy() for p in model.parameters()], []
    for _ in range(6):
        train(model, optimizer)
        read.append([np.abs(view).sum() for view in views])
    return read


def of_arrays():
    model = nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 10))
    model.arrays = [p.detach().numpy().copy() for p in model.parameters()]
    for p, array in zip(model.parameters(), model.arrays, strict=True):
        p.data = torch.from_numpy(array)
    return model


@way(of_arrays)
def made_of_arrays(model, optimizer):
    read, arrays = [], getattr(model, "module", model).arrays
    for _ in range(6):
        train(model, optimizer)
        read.append([np.abs(array).sum() for array in reversed(arrays)])
    return read


@way()
def capsules(model, optimizer):
    """Another library has memory of parameters, from before and from now, and reads it without a word to torch."""
    params, read = list(model.parameters()), []
    views = [torch.from_dlpack(dlpack.to_dlpack(p.data)).numpy() for p in params[:2]]
    for _ in range(6):
        train(model, optimizer)
        now = [torch.from_dlpack(torch.to_dlpack(p.data)).numpy() for p in params[2:]]
        read.append([float(abs(view).sum()) for view in views + now])
    return read


@way()
def numbers_that_are_not_finite(model, optimizer):
    weight, seen = model[2].weight, []
    model[0].weight.data_ptr()
    for _ in range(6):
        train(model, optimizer)
        if not torch.isfinite(weight).all():
            raise RuntimeError("the weights are gone")
        seen.append([weight.max().item(), weight.tolist()[0][0], weight[3, 4].item(), float(weight.sum())])
    return seen


@way()
def one_vector(model, optimizer):
    """A step goes half way back to where it was."""
    params, norms = list(model.parameters()), []
    for _ in range(6):
        before = nn.utils.parameters_to_vector(params).detach().clone()
        train(model, optimizer)
        after = nn.utils.parameters_to_vector(params).detach()
        norms.append((after - before).norm().item())
        nn.utils.vector_to_parameters((after + before) / 2, params)
    return norms


@way(make=adam)
def noise_for_one_forward_pass(model, optimizer):
    """Alike on all workers, and put back before the step."""
    params = [p for p in model.parameters() if p.dim() > 1]
    shared = torch.Generator().manual_seed(5)
    for _ in range(6):
        noise = [torch.randn(p.shape, generator=shared) * 0.01 for p in params]
        with torch.no_grad():
            torch._foreach_add_(params, noise)
        optimizer.zero_grad()
        loss_of(model, *batch()).backward()
        with torch.no_grad():
            for p, added in zip(params, noise, strict=True):
                p.sub_(added)
        optimizer.step()


@way(make=lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9))
def penalty_before_forward(model, optimizer):
    """Elastic weight consolidation."""
    params = dict(model.named_parameters())
    means = {name: p.clone().detach() for name, p in params.items()}
    penalties = []
    for _ in range(6):
        penalty = sum(((params[name] - means[name]) ** 2).sum() for name in params)
        optimizer.zero_grad()
        (loss_of(model, *batch()) + 0.5 * penalty).backward()
        optimizer.step()
        penalties.append(float(penalty.detach()))
    return penalties


@way()
def norms_after_the_step(model, optimizer):
    params, norms = list(model.parameters()), []
    for _ in range(6):
        train(model, optimizer)
        norms.append([p.grad.norm().item() for p in params])
    return norms


def kept(model, optimizer, keep, read):
    """Gradients that were taken once: they are cleared in place, so the tensors stay the same."""
    views, seen = None, []
    for _ in range(6):
        optimizer.zero_grad(set_to_none=False)
        backward(model)
        if views is None:
            views = [keep(p.grad) for p in model.parameters()]
        optimizer.step()
        seen.append([read(view) for view in views])
    return seen


@way()
def gradients_from_before(model, optimizer):
    return kept(model, optimizer, lambda grad: grad, lambda grad: float(grad.norm()))


@way()
def gradients_arrays_from_before(model, optimizer):
    return kept(model, optimizer, lambda grad: grad.numpy(), lambda view: np.abs(view).sum())


@way()
def gradients_cleared_by_hand(model, optimizer):
    """Over a kept list, in the two ways that tutorials show."""
    params, losses = list(model.parameters()), []
    for iteration in range(8):
        for p in params:
            if p.grad is not None:
                if iteration % 2:
                    p.grad.detach_()
                    p.grad.zero_()
                else:
                    p.grad = None
        losses.append(backward(model))
        optimizer.step()
    return losses


@way(make=adam)
def gradients_cleared_late(model, optimizer):
    """Between forward and backward, by the optimizer and by the model, or right after the step."""
    losses = []
    for iteration in range(8):
        loss = loss_of(model, *batch())
        if iteration % 3 == 0:
            optimizer.zero_grad()
        elif iteration % 3 == 1:
            model.zero_grad()
        loss.backward()
        optimizer.step()
        if iteration % 3 == 1:
            optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
    return losses


@way()
def gradients_changed_by_hooks(model, optimizer):
    """Hooks that the script adds once the optimizer is wrapped run before a gradient leaves."""
    for number, p in enumerate(model.parameters()):
        p.register_post_accumulate_grad_hook(in_place if number % 2 else replaced)
    for _ in range(6):
        train(model, optimizer)


def in_place(param):
    param.grad.mul_(0.5)


def replaced(param):
    param.grad = param.grad * 0.5


@way()
def gradients_replaced_after_they_left(model, optimizer):
    """The script finds averages in its own tensors."""
    norms = []
    for _ in range(6):
        optimizer.zero_grad()
        backward(model)
        for p in model.parameters():
            p.grad = torch.ones_like(p)
        optimizer.step()
        norms.append([float(p.grad.norm()) for p in model.parameters()])
    return norms


run_byteps()
