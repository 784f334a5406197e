"""Local SGD after some steps: gradients are averaged in a part of the ranks, if at all, and weights now and then."""

import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
alone, _ = dist.new_subgroups(group_size=1)
models, losses = [], []
for still_averages in (True, False):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 128), nn.ReLU(), nn.Linear(128, 10))
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.02)
    state = PostLocalSGDState(None, alone, start_localSGD_iter=4, post_local_gradient_allreduce=still_averages)
    ddp.register_comm_hook(state, post_localSGD_hook)
    averager = PeriodicModelAverager(period=3, warmup_steps=4)
    optimizer = PostLocalSGDOptimizer(torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9), averager)
    torch.manual_seed(100 + dist.get_rank())
    for _ in range(11):
        inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(ddp(inputs), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    models.append(ddp)
report(models, losses=losses)
