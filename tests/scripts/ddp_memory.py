"""Parameters, gradients and states in one memory, in overlapping parts of one, and in memory that the script keeps."""

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from ways import backward, loss_of, run_ddp, train, way


def named(name, function, *build, **options):
    """Have `function` train a model, as the way of this name."""

    def trained(ddp, optimizer):
        return function(ddp, optimizer)

    trained.__name__ = name
    way(*build, **options)(trained)


def adamw(params):
    return torch.optim.AdamW(params, lr=1e-2)


def square():
    return nn.Sequential(
        nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32), nn.Linear(32, 10)
    )


def tied():
    """Parameters tied by `.data`."""
    model = square()
    model[4].weight.data = model[0].weight.data
    model[2].bias.data = model[0].bias.data
    return model


def overlapping():
    model = square()
    memory = torch.randn(3 * 1024) / 8
    for place, start in ((0, 0), (2, 512), (4, 1024)):
        model[place].weight.data = memory[start : start + 1024].view(32, 32)
    return model


def flat():
    """Parameters in one buffer, with no element in common."""
    model = square()
    params = list(model.parameters())
    memory = torch.cat([param.data.flatten() for param in params])
    for param, part in zip(params, memory.split([param.numel() for param in params]), strict=True):
        param.data = part.view_as(param)
    return model


def loop(model, optimizer):
    losses = [train(model, optimizer) for _ in range(6)]
    for _ in range(4):
        losses.append(backward(model))
        optimizer.step()
        optimizer.zero_grad()
    return losses


named("params_tied", loop, tied)
named("params_tied_adamw", loop, tied, adamw)
named("params_overlap", loop, overlapping)
named("params_in_one_buffer", loop, flat, adamw)


@way(square)
def params_of_two_models(model, optimizer):
    other = square()
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        theirs.data = mine.data
    other = DistributedDataParallel(other)
    others_optimizer = torch.optim.SGD(other.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for _ in range(6):
        losses += [backward(model), backward(other)]
        others_optimizer.step()
        optimizer.step()
        optimizer.zero_grad()
        others_optimizer.zero_grad()
    return losses


def one_tensor(params):
    params[0].grad = params[4].grad = torch.zeros_like(params[0])
    params[1].grad = params[7].grad = torch.zeros_like(params[1])


def one_memory(params):
    memory = torch.zeros_like(params[0])
    for param in (params[2], params[6], params[4]):
        param.grad = memory.view_as(param)


def overlaps(params):
    count = params[0].numel()
    memory = torch.zeros(2 * count)
    for param, start in zip(params[0:8:2], (0, count // 3, count // 2, count), strict=True):
        param.grad = memory[start : start + count].view_as(param)


def lent(lend):
    """Return what has `lend` put gradients in place before each backward pass."""

    def lending(ddp, optimizer):
        params, seen = list(ddp.parameters()), []
        for iteration in range(8):
            lend(params)
            loss = loss_of(ddp, torch.randn(16, 64), torch.randint(10, (16,)))
            loss.backward()
            seen.append(loss.item())
            if iteration % 3 == 0:
                seen += [params[2].grad.norm().item(), params[6].grad.norm().item()]
            optimizer.step()
        return seen, optimizer.state_dict()

    return lending


def five_layers():
    return nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)), nn.Linear(64, 10))


def slow_sgd(params):
    return torch.optim.SGD(params, lr=0.02, momentum=0.9)


for lend in (one_tensor, one_memory, overlaps):
    for how, options in {
        "": {},
        "_unused": {"find_unused_parameters": True, "bucket_cap_mb": 0.03},
        "_static": {"static_graph": True},
        "_buckets": {"bucket_cap_mb": 0.03},
    }.items():
        named(f"grads_in_{lend.__name__}{how}", lent(lend), five_layers, slow_sgd, **options)


class Attention(nn.Module):
    """Puts parameters together in forward, so that their gradients are views of one tensor."""

    def __init__(self):
        super().__init__()
        self.packed = nn.Linear(32, 96, bias=False)
        self.q_bias, self.v_bias = nn.Parameter(torch.zeros(32)), nn.Parameter(torch.zeros(32))
        self.scales = nn.ParameterList([nn.Parameter(torch.tensor(1.0)) for _ in range(3)])
        self.head = nn.Linear(32, 10)

    def forward(self, inputs):
        bias = torch.cat([self.q_bias, torch.zeros(32), self.v_bias])
        q, k, v = (nn.functional.linear(inputs, self.packed.weight, bias)).chunk(3, 1)
        scales = torch.stack(list(self.scales))
        return self.head((q * k).softmax(1) * v * scales[0] + q * scales[1] + k * scales[2])


@way(Attention)
def grads_of_parts(ddp, optimizer):
    seen = []
    for iteration in range(12):
        optimizer.zero_grad()
        seen.append(backward(ddp))
        if iteration % 3 == 0:
            seen.append(nn.utils.clip_grad_norm_(ddp.parameters(), 0.5).item())
        optimizer.step()
        if iteration % 3 == 1:
            seen += [p.grad.sum().item() for p in ddp.parameters()]
    return seen, optimizer.state_dict()


@way(lambda: nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 10)), adamw)
def grads_in_a_flat_buffer(ddp, optimizer):
    params, seen = list(ddp.parameters()), []
    buffer = torch.zeros(sum(p.numel() for p in params))
    for p, part in zip(params, buffer.split([p.numel() for p in params]), strict=True):
        p.grad = part.view_as(p)
    for iteration in range(12):
        buffer.zero_()
        seen.append(backward(ddp))
        if iteration % 3 == 0:
            seen.append(buffer.norm().item())
            buffer.mul_(0.5)
        optimizer.step()
    return seen, optimizer.state_dict()


def storages(tensors):
    return [tensor.untyped_storage() for tensor in tensors]


def arrays(tensors):
    return [tensor.numpy() for tensor in tensors]


def exports(tensors):
    """Hand memory out below torch's own Python, as another library may."""
    return [torch.from_dlpack(torch._C._to_dlpack(tensor)).numpy() for tensor in tensors]


def kept(keep, of):
    """Return what keeps memory after two steps, and then uses it past torch's functions."""

    def keeping(ddp, optimizer):
        params, kept, seen = list(ddp.parameters()), [], []
        for iteration in range(6):
            optimizer.zero_grad(set_to_none=False)
            backward(ddp)
            if of == "gradients":
                seen += [torch.tensor(each.tolist(), dtype=torch.float64) for each in kept]
            optimizer.step()
            if of != "gradients":
                seen += [torch.tensor(each.tolist(), dtype=torch.float64) for each in kept]
            if iteration == 1:
                tensors = {
                    "parameters": lambda: [param.detach() for param in params],
                    "gradients": lambda: [param.grad for param in params],
                    "state": lambda: [optimizer.state[param]["momentum_buffer"] for param in params],
                }[of]
                kept = keep(tensors())
            elif iteration == 3 and keep is storages:
                kept[-1].fill_(0)
        return seen

    return keeping


def three_layers():
    return nn.Sequential(nn.Linear(32, 48), nn.ReLU(), nn.Linear(48, 64), nn.Linear(64, 10))


for keep, of in (
    (storages, "parameters"),
    (storages, "gradients"),
    (storages, "state"),
    (arrays, "state"),
    (exports, "parameters"),
):
    named(f"{keep.__name__}_of_{of}", kept(keep, of), three_layers)
run_ddp()
