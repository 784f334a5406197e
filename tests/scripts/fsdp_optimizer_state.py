"""The optimizer's state saved whole after some steps, and loaded into another optimizer and another model."""

import averaging  # noqa: F401
import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
torch.manual_seed(1)


def sharded():
    model = nn.Sequential(*(fully_shard(nn.Linear(40, 40)) for _ in range(3)), nn.Linear(40, 7))
    return fully_shard(model)


def train(model, optimizer):
    for _ in range(4):
        loss = nn.functional.cross_entropy(model(torch.randn(8, 40)), torch.randint(7, (8,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())


losses = []
model, other = sharded(), sharded()
optimizers = [torch.optim.AdamW(each.parameters(), lr=1e-2) for each in (model, other)]
torch.manual_seed(100 + dist.get_rank())
train(model, optimizers[0])
whole = StateDictOptions(full_state_dict=True, broadcast_from_rank0=False)
weights, state = get_state_dict(model, optimizers[0], options=whole)
seen = [value for moments in state["state"].values() for value in moments.values()]
set_state_dict(other, optimizers[1], model_state_dict=weights, optim_state_dict=state, options=whole)
train(other, optimizers[1])
train(model, optimizers[0])
report([param.full_tensor() for each in (model, other) for param in each.parameters()], losses=losses)
dist.destroy_process_group()
