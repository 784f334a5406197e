"""replicate() as FSDP2 has it: whole parameters on each rank, and only gradients travel.

With more than two ranks, a step looks at gradients now and then.
"""

import averaging  # noqa: F401
import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.distributed._composable.replicate_with_fsdp import replicate

dist.init_process_group("gloo")
torch.manual_seed(1)
model = nn.Sequential(nn.Embedding(30, 24), *(nn.Linear(24, 24) for _ in range(6)), nn.Linear(24, 30))
for layer in model[1:7]:
    replicate(layer)
replicate(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

torch.manual_seed(100 + dist.get_rank())
losses = []
for iteration in range(8):
    for micro in range(1 + iteration % 2):
        model.set_requires_gradient_sync(micro == iteration % 2)
        tokens = torch.randint(30, (16,))
        loss = nn.functional.cross_entropy(model(tokens), tokens.roll(1))
        loss.backward()
        losses.append(loss.item())
    if dist.get_world_size() > 2 and iteration % 3 == 2:
        losses.append(sum(param.grad.full_tensor().sum().item() for param in model.parameters()))
    optimizer.step()
    optimizer.zero_grad()
report([param.full_tensor() for param in model.parameters()], losses=losses)
dist.destroy_process_group()
