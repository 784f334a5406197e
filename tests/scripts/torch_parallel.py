"""BytePS's own wrapper of a module: buffers, no_sync(), clipping, callbacks of backward, and an optimizer of torch."""

import byteps.torch as bps
import torch
from byteps.torch.parallel import DistributedDataParallel
from report import report
from torch import nn

bps.init()
torch.manual_seed(1)
model = nn.Sequential(
    nn.Linear(32, 96), nn.BatchNorm1d(96), nn.ReLU(), nn.Linear(96, 128), nn.ReLU(), nn.Linear(128, 10)
)
ddp = DistributedDataParallel(model, device_ids=[0])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

torch.manual_seed(100 + bps.rank())
norms, losses = [], []


def at_the_end():
    """Read averages and write them, before backward returns."""
    norms.extend(p.grad.norm() for p in model.parameters())
    for p in model.parameters():
        p.grad.clamp_(-0.01, 0.01)


for iteration in range(8):
    # A tensor of the CPU is pushed from where it was first.
    optimizer.zero_grad(set_to_none=False)
    if iteration % 3 == 2:
        with ddp.no_sync():
            nn.functional.cross_entropy(ddp(torch.randn(16, 32)), torch.randint(10, (16,))).backward()
    loss = nn.functional.cross_entropy(ddp(torch.randn(16, 32)), torch.randint(10, (16,)))
    if iteration == 5:  # averaged by hand, twice
        with ddp.no_sync():
            loss.backward()
        ddp.synchronize()
        for p in model.parameters():
            p.grad.add_(torch.randn(p.shape), alpha=0.01)
        ddp.synchronize()
    else:
        if iteration % 4 == 2:
            loss.register_hook(lambda _: torch.autograd.Variable._execution_engine.queue_callback(at_the_end))
        loss.backward()
    if iteration % 4 == 3:
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.5))
    optimizer.step()
    losses.append(loss.item())
report(list(model.parameters()), buffers=list(model.buffers()), norms=norms, losses=losses)
