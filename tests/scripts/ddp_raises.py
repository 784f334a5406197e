"""Jobs that torch refuses: parameters unused, repeated or swapped, gradients of another type, changed static graphs."""

import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

dist.init_process_group("gloo")
rank = dist.get_rank()


class Half(nn.Module):
    """A parameter has no part in the loss: the next forward pass says so."""

    def __init__(self):
        super().__init__()
        self.used, self.unused = nn.Linear(32, 10), nn.Linear(3, 3)

    def forward(self, inputs):
        return self.used(inputs)


class Twice(nn.Module):
    """A parameter is in two re-entrant parts of one graph, without static_graph."""

    def __init__(self):
        super().__init__()
        self.stem, self.block, self.head = nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 10)

    def forward(self, inputs):
        hidden = checkpoint(self.block, self.stem(inputs), use_reentrant=True)
        return self.head(checkpoint(self.block, hidden, use_reentrant=True))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.extra, self.last = (nn.Linear(8, 8) for _ in range(3))
        self.uses = 1

    def forward(self, inputs):
        inputs = self.first(inputs)
        for _ in range(self.uses):
            inputs = self.extra(inputs)
        return self.last(inputs)


def wrapped(make, **options):
    """Wrap a module. Numbers drawn from then on are each rank's own."""
    torch.manual_seed(1)
    ddp = DistributedDataParallel(make(), **options)
    torch.manual_seed(100 + rank)
    return ddp


def backward(ddp):
    ddp(torch.randn(4, 8)).square().mean().backward()


def refusal(call, *arguments):
    try:
        call(*arguments)
    except RuntimeError as error:
        return str(error)
    return "nothing"


def until_refused(first, then):
    """Trains with `first` uses of a layer in the first two iterations, and with `then` uses from then on."""
    ddp = wrapped(Net, static_graph=True)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    for step in range(4):
        ddp.module.uses = first if step < 2 else then
        optimizer.zero_grad()
        try:
            loss = ddp(torch.randn(4, 8)).square().mean()
        except RuntimeError as error:
            return [f"forward {step}", str(error)[:40]]
        try:
            loss.backward()
        except RuntimeError as error:
            # Some gradients may be on their way, but nothing was stepped.
            return [f"backward {step}", str(error)[:40], list(ddp.parameters())]
        optimizer.step()
    return [list(ddp.parameters())]


def second_gradient():
    """An additional gradient comes after all gradients of the iteration are there."""

    class Again(torch.autograd.Function):
        @staticmethod
        def forward(ctx, inputs):
            return inputs.clone()

        @staticmethod
        def backward(ctx, grad):
            with torch.enable_grad():
                ddp.module.last.weight.sum().backward()
            return grad

    ddp = wrapped(Net)
    inputs = torch.randn(4, 8, requires_grad=True)
    return refusal(lambda: ddp(Again.apply(inputs)).square().mean().backward())[:40]


def cleared():
    """Gradients of an accumulation are cleared before a pass without a use of theirs."""
    ddp = wrapped(Net, find_unused_parameters=True)
    with ddp.no_sync():
        backward(ddp)
    ddp.zero_grad()
    ddp.module.uses = 0
    return refusal(backward, ddp)


class Returning(nn.Module):
    """An output is a parameter."""

    def __init__(self):
        super().__init__()
        self.first, self.own = nn.Linear(8, 4), nn.Parameter(torch.randn(4))

    def forward(self, inputs):
        return self.first(inputs), self.own


def returned():
    """torch counts a parameter that is an output as unused."""
    ddp = wrapped(Returning, find_unused_parameters=True)
    return refusal(lambda: ddp(torch.randn(4, 8))[0].square().mean().backward())


def first_unsynced():
    """The first backward pass of a static graph is within no_sync()."""
    ddp = wrapped(Net, static_graph=True)
    with ddp.no_sync():
        return refusal(backward, ddp)[:45]


def small():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def train(ddp, optimizer, steps=3):
    for _ in range(steps):
        optimizer.zero_grad()
        backward(ddp)
        optimizer.step()


def load(module):
    module.load_state_dict({name: value.clone() for name, value in module.state_dict().items()})


def swap(module):
    torch.utils.swap_tensors(module[0].weight, nn.Parameter(module[0].weight.detach().clone()))


def swap_in_accumulation(module):
    with ddp.no_sync():
        backward(ddp)
    swap(module)


models, said = [], []
for make, words in ((Half, slice(60)), (Twice, slice(0))):
    ddp = wrapped(make)
    try:
        for _ in range(2):
            nn.functional.cross_entropy(ddp(torch.randn(16, 32)), torch.randint(10, (16,))).backward()
        said.append("nothing")
    except RuntimeError as error:
        said += [str(error)[words], "only once" in str(error)]
    models.append(ddp)

for first in (0, 2):  # from the start, and in mid-training
    ddp = wrapped(lambda: small().bfloat16())
    model = ddp.module
    for iteration in range(4):
        if iteration == first:
            for param in model.parameters():
                param.grad_dtype = torch.float32
        try:
            ddp(torch.randn(4, 8).bfloat16()).square().mean().backward()
        except RuntimeError as error:
            said.append([iteration, str(error).splitlines()[0]])
            break
        with torch.no_grad():
            for param in model.parameters():
                param.sub_(param.grad.to(param.dtype), alpha=0.1)
                param.grad = None
    models.append(model)
for way in (load, nn.Module.double, swap, swap_in_accumulation):
    ddp = wrapped(small)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
    train(ddp, optimizer)
    torch.__future__.set_swap_module_params_on_conversion(True)
    said.append(refusal(way, ddp.module)[:60])
    torch.__future__.set_swap_module_params_on_conversion(False)
    train(ddp, optimizer)
    models.append(ddp)
said += [until_refused(0, 1), until_refused(1, 0), until_refused(1, 1), until_refused(2, 2), second_gradient()]
said += [cleared(), returned(), first_unsynced()]
report(models, said=said)
dist.destroy_process_group()
