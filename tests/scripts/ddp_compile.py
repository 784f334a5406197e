"""torch.compile of the module, of the wrapper, and of blocks within."""

import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch._dynamo.utils import counters
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(1)
models, losses = [], []
for kind in ("wrapper", "module", "block"):
    model = nn.Sequential(nn.Linear(32, 64), nn.Sequential(nn.Linear(64, 64), nn.GELU()), nn.Linear(64, 10))
    if kind == "module":
        ddp = DistributedDataParallel(torch.compile(model, backend="aot_eager"))
        call = ddp
    elif kind == "wrapper":
        ddp = DistributedDataParallel(model)
        call = torch.compile(ddp, backend="aot_eager")
    else:
        model[1].compile(backend="aot_eager")
        call = ddp = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-2)
    torch.manual_seed(100 + dist.get_rank())
    for _ in range(5):
        inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
        loss = nn.functional.cross_entropy(call(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    models.append(model)
graphs = [sum(counters["graph_break"].values()), counters["stats"]["unique_graphs"]]
report(models, losses=losses, graphs=graphs)
