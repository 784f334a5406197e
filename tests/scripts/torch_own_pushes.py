"""push_pull called by the script itself, with a priority for some tensors, in all the ways that BytePS has."""

import byteps.torch as bps
import torch
from byteps.torch.ops import poll, push_pull_async, push_pull_async_inplace, push_pull_inplace, synchronize
from report import report
from torch import nn

bps.init()
torch.manual_seed(1)
# The widest gradient has 1.2 MB, which is more than a partition, and the narrowest 40 bytes.
model = nn.Sequential(nn.Linear(32, 512), nn.ReLU(), nn.Linear(512, 600), nn.ReLU(), nn.Linear(600, 10))
bps.broadcast_parameters(model.state_dict(), root_rank=0)
layers = [layer for layer in model if isinstance(layer, nn.Linear)]
handles = {}


def send(param, number):
    """Each gradient in another way; what is computed is the same whatever the partitions are."""
    name = f"gradient.{number}"
    if number == 0:
        handles[number] = push_pull_async_inplace(param.grad, True, name, 0, 0)
    elif number == 2:
        handles[number] = push_pull_async_inplace(param.grad, name=name, priority=-number)
    elif number == 4:
        handles[number] = push_pull_async(param.grad, True, name, 0, -number)
    elif number == 5:  # without a priority at first
        late = {} if not losses else {"priority": -number}
        handles[number] = bps.byteps_push_pull(param.grad, name=name, **late)
    else:
        handles[number] = push_pull_async_inplace(param.grad, name=name)


def update(number, param):
    handle = handles.pop(number, None)
    if handle is not None:
        while not poll(handle):
            pass
        with torch.no_grad():
            param.sub_(synchronize(handle), alpha=0.1)
        param.grad = None


parameters = list(model.parameters())
for number, param in enumerate(parameters):
    param.register_post_accumulate_grad_hook(lambda param, number=number: send(param, number))


def before(layer, _):
    for number, param in enumerate(parameters):
        if any(param is own for own in layer.parameters()):
            update(number, param)


for layer in layers:
    layer.register_forward_pre_hook(before)

torch.manual_seed(100 + bps.rank())
losses, halves, unnamed, metrics = [], [], [], []
half, nameless = torch.zeros(400_000, dtype=torch.float16), torch.zeros(200_000)
for _ in range(4):
    inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
    loss = nn.functional.cross_entropy(model(inputs), labels)
    loss.backward()
    losses.append(loss.item())
    half.copy_(torch.randn(len(half)))
    handle = push_pull_async_inplace(half, average=False, name="half", priority=3)
    push_pull_inplace(nameless.copy_(torch.randn(len(nameless))), average=False, priority=-7)  # BytePS names it
    metrics.append(bps.push_pull(loss.detach().reshape(1), name="loss", priority=-100).item())
    halves.append(synchronize(handle).float().sum().item())
    unnamed.append(nameless.sum().item())
for number, param in enumerate(parameters):
    update(number, param)
report(model, losses=losses, halves=halves, unnamed=unnamed, metrics=metrics)
