"""Checkpoints by torch.distributed.checkpoint in the middle of training, an evaluation, and going back to the first."""

import averaging  # noqa: F401
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from report import report
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
torch.manual_seed(1)
model = nn.Sequential(*(nn.Sequential(nn.Linear(40, 40), nn.LayerNorm(40)) for _ in range(3)), nn.Linear(40, 7))
for block in model[:3]:
    fully_shard(block)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
place = f"../checkpoint-{dist.get_world_size()}"

torch.manual_seed(100 + dist.get_rank())
losses, seen = [], []
for iteration in range(8):
    loss = nn.functional.cross_entropy(model(torch.randn(8, 40)), torch.randint(7, (8,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    if iteration == 2:
        weights, moments = get_state_dict(model, optimizer)
        dcp.save({"model": weights, "optimizer": moments}, checkpoint_id=place)
    if iteration == 5:
        with torch.no_grad():
            seen.append(model(torch.ones(2, 40)))
        state = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
        dcp.load(state, checkpoint_id=place)
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    seen.extend(value.full_tensor().clone() for value in get_model_state_dict(model).values())
report([param.full_tensor() for param in model.parameters()], losses=losses, seen=seen)
dist.destroy_process_group()
