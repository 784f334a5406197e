"""Parameters of a class of the program's own, which FSDP2 gathers by the class's own methods, as torchao's do."""

import torch
import torch.distributed as dist
from report import report
from sharded import adamw, step
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils._pytree import tree_map_only


class Wrapped(torch.Tensor):
    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, inner.stride(), dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    def fsdp_pre_all_gather(self, mesh):
        return (self.inner,), None

    def fsdp_post_all_gather(self, gathered, metadata, dtype, *, out=None):
        return None if out is not None else (gathered[0], gathered)

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        args, kwargs = tree_map_only(cls, lambda tensor: tensor.inner, (args, kwargs or {}))
        made = function(*args, **kwargs)
        of_memory = ("as_strided", "clone", "copy_", "detach", "empty_like", "new_zeros", "slice", "split", "view")
        return tree_map_only(torch.Tensor, cls, made) if function.overloadpacket.__name__ in of_memory else made


def wrapped(ins, outs):
    layer = nn.Linear(ins, outs)
    layer.weight = nn.Parameter(Wrapped(layer.weight.detach()))
    return layer


dist.init_process_group("gloo")
torch.manual_seed(1)
blocks = (fully_shard(nn.Sequential(wrapped(40, 64), nn.ReLU(), wrapped(64, 40))) for _ in range(3))
model = fully_shard(nn.Sequential(*blocks, nn.Linear(40, 7)))
optimizer = adamw(model.parameters())
torch.manual_seed(100 + dist.get_rank())
losses = [step(model, optimizer) for _ in range(8)]
with torch.no_grad():
    report(model(torch.eye(40)), losses=losses)
dist.destroy_process_group()
