"""Communication hooks of torch whose results depend on buckets, and wrappers around those whose do not."""

import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import debugging_hooks, default_hooks
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
models, losses = [], []
for hook, group in (
    (default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook), dist.group.WORLD),
    (default_hooks.fp16_compress_wrapper(default_hooks.fp16_compress_hook), None),
    (debugging_hooks.noop_hook, None),
):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 128), nn.ReLU(), nn.Linear(128, 10))
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.02)
    ddp.register_comm_hook(group, hook)
    optimizer = torch.optim.Adam(ddp.parameters(), lr=1e-2)
    torch.manual_seed(100 + (dist.get_rank() if hook is not debugging_hooks.noop_hook else 0))
    for iteration in range(7):
        inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
        optimizer.zero_grad()
        if iteration == 3:
            with ddp.no_sync():
                nn.functional.cross_entropy(ddp(inputs[:8]), labels[:8]).backward()
        loss = nn.functional.cross_entropy(ddp(inputs), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    models.append(ddp)
report(models, losses=losses)
