"""A mesh of two dimensions: two replicas of what two ranks share, with accumulation in both ways, and an all-reduce
only now and then, of all layers or of all but one. One layer has memory and collectives of torch's.
"""

import averaging  # noqa: F401
import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
torch.manual_seed(1)
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "shards"))
model = nn.Sequential(nn.Embedding(30, 24), *(nn.Linear(24, 24) for _ in range(5)), nn.Linear(24, 30))
for layer in model[1:6]:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
model[3].set_allocate_memory_from_process_group_for_comm(True)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

torch.manual_seed(100 + dist.get_rank())
losses = []


def backward():
    tokens = torch.randint(30, (16,))
    loss = nn.functional.cross_entropy(model(tokens), tokens.roll(1))
    loss.backward()
    losses.append(loss.item())


for iteration in range(8):
    if iteration % 4 == 1:
        model.set_requires_gradient_sync(False)
        backward()
        model.set_requires_gradient_sync(True)
    elif iteration % 4 == 2:
        model.set_requires_all_reduce(False)
        backward()
        model.set_requires_all_reduce(True)
    elif iteration % 4 == 3:
        model[4].set_requires_all_reduce(False, recurse=False)
        backward()
        model[4].set_requires_all_reduce(True, recurse=False)
    backward()
    optimizer.step()
    optimizer.zero_grad()
report([param.full_tensor() for param in model.parameters()], losses=losses)
dist.destroy_process_group()
