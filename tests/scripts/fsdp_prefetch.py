"""Lists of what to gather ahead, set for some modules only and changed in the middle of training."""

import averaging  # noqa: F401
import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
torch.manual_seed(1)
layers = [fully_shard(nn.Linear(40, 40), reshard_after_forward=place % 2 == 0) for place in range(6)]
model = fully_shard(nn.Sequential(*layers, nn.Linear(40, 7)), reshard_after_forward=True)
layers[0].set_modules_to_forward_prefetch(layers[1:4])
layers[5].set_modules_to_backward_prefetch([layers[4], layers[3]])
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
torch.manual_seed(100 + dist.get_rank())
losses = []
for iteration in range(8):
    if iteration == 4:
        layers[0].set_modules_to_forward_prefetch([])
        layers[2].set_modules_to_forward_prefetch([layers[3]])
        layers[1].set_reshard_after_forward(True)
        layers[5].set_unshard_in_backward(True)
    loss = nn.functional.cross_entropy(model(torch.randn(8, 40)), torch.randint(7, (8,)))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
report([param.full_tensor() for param in model.parameters()], losses=losses)
dist.destroy_process_group()
