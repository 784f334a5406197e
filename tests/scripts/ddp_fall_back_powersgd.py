"""PowerSGD, and code that reads the reducer's buckets after some steps: torch's reducer goes on with the same ones."""

import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 128), nn.ReLU(), nn.Linear(128, 10))
model = nn.ModuleDict({"late": model[4], "early": model[0], "middle": model[2]})  # Not in the order of use.


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = model

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.parts["late"](self.parts["middle"](self.parts["early"](inputs).relu()).relu())


ddp = DistributedDataParallel(Model())
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
ddp.register_comm_hook(PowerSGDState(None, 2, start_powerSGD_iter=3), powerSGD_hook)
torch.manual_seed(100 + dist.get_rank())
losses = []
for iteration in range(11):
    inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
    if iteration == 6:
        sizes = [bucket.buffer().numel() for bucket in ddp.reducer._get_zeros_like_grad_buckets()]
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(ddp(inputs), labels)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
report(ddp, losses=losses, sizes=sizes)
