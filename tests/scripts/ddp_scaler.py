"""A loss scaler on the CPU whose scale is too large at first, and bfloat16 autocast."""

import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(1)
models, states, scales = [], [], []
for fused in (False, True):
    model = nn.Sequential(nn.Linear(32, 96), nn.LayerNorm(96), nn.ReLU(), nn.Linear(96, 10))
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(ddp.parameters(), lr=1e-2, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, growth_interval=2)
    torch.manual_seed(100 + dist.get_rank())
    for iteration in range(8):
        inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(ddp(inputs) * 4, labels)
        scaler.scale(loss).backward()
        if iteration % 2:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(ddp.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    models.append(ddp)
    states.append(optimizer.state_dict())
report(models, states=states, scales=scales)
