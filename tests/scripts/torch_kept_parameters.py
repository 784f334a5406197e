"""Parameters that the script took before training are read or written after each step."""

import numpy as np
import torch
from torch import nn
from torch.utils import dlpack
from ways import adam, batch, loss_of, run_byteps, train, way


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


run_byteps()
