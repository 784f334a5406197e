"""Model after model in one process, as in a search: each wrapped, trained and dropped, with few files to open."""

import resource
import weakref

import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (128, most))
losses, weights, gone = [], [], []
for trial in range(30):
    torch.manual_seed(trial)
    ddp = DistributedDataParallel(nn.Sequential(nn.Linear(32, 48), nn.ReLU(), nn.Linear(48, 10)))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
    torch.manual_seed(100 * trial + dist.get_rank())
    for _ in range(3):
        inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(ddp(inputs), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    weights += [p.detach().clone() for p in ddp.parameters()]
    reference, optimizer = weakref.ref(optimizer), None
    gone.append(reference() is None)
report(weights, losses=losses, gone=gone)
