"""RPC begins after a module was made, and another is made after that: distributed autograd averages both."""

from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
from report import report
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()


def model():
    torch.manual_seed(1)
    return DistributedDataParallel(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4)))


before = model()
optimizer = torch.optim.SGD(before.parameters(), lr=0.1)
torch.manual_seed(100 + rank)
for _ in range(3):
    optimizer.zero_grad()
    before(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
options = rpc.TensorPipeRpcBackendOptions(
    init_method=f"file://{Path('../rpc').resolve()}", _transports=["uv"], _channels=["basic"]
)
rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2, rpc_backend_options=options)
averages = []
for ddp in (before, model()):
    for _ in range(3):
        with dist_autograd.context() as context:
            dist_autograd.backward(context, [ddp(torch.randn(4, 8)).square().mean()])
            gradients = dist_autograd.get_gradients(context)
            averages += [gradients[param] for param in ddp.parameters()]
report([*before.parameters(), *averages])
rpc.shutdown()
dist.destroy_process_group()
