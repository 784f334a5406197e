"""Three replicas of what one rank has, on a mesh of two dimensions, in half precision, with clipping. One rank alone
looks at gradients within backward.
"""

import averaging  # noqa: F401
import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

dist.init_process_group("gloo")
torch.manual_seed(1)
mesh = init_device_mesh("cpu", (dist.get_world_size(), 1), mesh_dim_names=("replicas", "shards"))
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
model = nn.Sequential(*(fully_shard(nn.Linear(25, 25), mesh=mesh, mp_policy=policy) for _ in range(6)))
fully_shard(model, mesh=mesh, mp_policy=policy)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
torch.manual_seed(100 + dist.get_rank())
norms, seen = [], []


def look(module, inner, outer):
    if dist.get_rank() == 1:
        seen.append(model[3].weight.grad.to_local().clone())


hook = model[1].register_full_backward_hook(look)
for iteration in range(8):
    if iteration == 4:
        hook.remove()
    model(torch.randn(8, 25)).float().square().mean().backward()
    if iteration % 2:
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.1).full_tensor())
    optimizer.step()
    optimizer.zero_grad()
report([param.full_tensor() for param in model.parameters()], norms=norms, seen=[*seen, torch.zeros(1)])
dist.destroy_process_group()
