"""Programs that reach for torch's reducer: they look at its buckets, and average one by themselves."""

import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 10))
ddp = DistributedDataParallel(model)
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)

torch.manual_seed(100 + dist.get_rank())
losses, sizes = [], []
for iteration in range(8):
    if iteration == 3:
        buckets = ddp.reducer._get_zeros_like_grad_buckets()
        sizes += [bucket.buffer().numel() for bucket in buckets]
        for bucket in buckets:
            bucket.buffer().fill_(dist.get_rank() + 1.0)
            sizes += [each.sum().item() for each in ddp.reducer._run_comm_hook(bucket).wait()]
    if iteration == 5:
        ddp.reducer._install_post_backward_futures([torch.futures.Future()][:0])
        ddp.reducer._push_all_rebuilt_params()
    inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(ddp(inputs), labels)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
report(ddp, losses=losses, sizes=sizes)
