"""Reports of DistributedDataParallel on itself: its logging data, its reducer's state, and the errors it raises."""

import contextlib

import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

dist.init_process_group("gloo")
torch.manual_seed(1)
said, kept = {}, []


class Parts(nn.Module):
    """Module that uses only its first `count` parts."""

    def __init__(self, count=4, twice=False):
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(16, 16) for _ in range(count))
        self.twice = twice

    def forward(self, inputs, count):
        for part in self.parts[:count]:
            inputs = checkpoint(part, inputs, use_reentrant=True) if self.twice else part(inputs)
            inputs = checkpoint(part, inputs, use_reentrant=True) if self.twice else inputs
        return inputs.to(self.parts[0].weight.dtype)


def inputs():
    return torch.randn(8, 16, requires_grad=True)


def look(what, ddp):
    data = ddp._get_ddp_logging_data()
    kept.append(ddp)  # A module that goes away would have torch's logger say so.
    stable = {name: value for name, value in data.items() if "time" not in name and name != "master_port"}
    said[what] = [sorted(data), dict(sorted(stable.items()))]


def train(ddp, counts):
    for count in counts:
        ddp(inputs(), count).sum().backward()


def text_of(call):
    try:
        call()
    except RuntimeError as error:
        return str(error).split("\nException raised from")[0]
    return "nothing"


torch.manual_seed(100 + dist.get_rank())
changing = DistributedDataParallel(Parts(), find_unused_parameters=True)
for count in (2, 2, 4, 1):
    train(changing, [count])
    said[f"used {len(said)}"] = [changing.reducer._get_local_used_map().clone(), changing.reducer._ddp_graph_static()]
look("graph that changes", changing)

always = DistributedDataParallel(Parts(), bucket_cap_mb=0.002)
look("before the first iteration", always)
always._set_ddp_runtime_logging_sample_rate(2)
for _ in range(14):
    with always.no_sync():
        train(always, [4])
    train(always, [4])
look("several buckets, every second iteration", always)
said["reached"] = [always.reducer._get_local_used_map(), [each > 0 for each in always.reducer.get_backward_stats()]]
said["static too late"] = text_of(always._set_static_graph)
look("after an error", always)

static = DistributedDataParallel(Parts(), static_graph=True)
for count in range(4):
    train(static, [3])
    look(f"static graph, {count}", static)
said["static"] = [static.reducer._get_local_used_map(), static.reducer._ddp_graph_static()]

for hook in (default_hooks.allreduce_hook, default_hooks.fp16_compress_hook):
    hooked = DistributedDataParallel(Parts(), gradient_as_bucket_view=True)
    hooked.register_comm_hook(None, hook)
    train(hooked, [4] * 3)
    look(hook.__name__, hooked)
said["hook"] = []
for hook in ({}, 3):
    with contextlib.suppress(TypeError):
        always.register_comm_hook(None, hook)
    look(f"hook {hook}", always)

mixed = Parts()
mixed.parts[1].double()
skips = {"skip_all_reduce_unused_params": True, "bucket_cap_mb": 0.002}
look("two types", DistributedDataParallel(mixed))
skipping = DistributedDataParallel(Parts(), find_unused_parameters=True, **skips)
train(skipping, [2] * 3)
look("unused ones are skipped", skipping)

for level in (dist.DebugLevel.OFF, dist.DebugLevel.INFO, dist.DebugLevel.DETAIL):
    dist.set_debug_level(level)
    for finds in (False, True):
        open_ = DistributedDataParallel(Parts(), find_unused_parameters=finds)
        open_(inputs(), 4)
        open_.module(inputs(), 3).sum().backward()
        texts = [text_of(lambda module=open_: module(inputs(), 4)), text_of(open_._check_reducer_finalized)]
        with open_.no_sync():
            texts.append(text_of(lambda module=open_: module(inputs(), 4)))
        with torch.no_grad():
            texts.append(text_of(lambda module=open_: module(inputs(), 4)))
        said[f"not finished, {level}, {finds}"] = texts
        look(f"not finished, {level}, {finds}, data", open_)
    twice = DistributedDataParallel(Parts(twice=True))
    said[f"twice, {level}"] = text_of(lambda module=twice: module(inputs(), 4).sum().backward())
    outside = DistributedDataParallel(Parts())
    halves = outside(inputs(), 4), outside.module(inputs(), 2)
    said[f"outside, {level}"] = text_of(
        lambda both=halves: (both[1].sum().backward(), both[0].sum().backward()),
    )
    look(f"twice, {level}, data", twice)
dist.set_debug_level(dist.DebugLevel.OFF)
for count in (1, 2, 3):
    # If the last gradient of all comes in an inner backward pass, one more is added on top, as torch does it.
    reentrant = DistributedDataParallel(Parts(count, twice=True))
    said[f"re-entrant, {count}"] = text_of(lambda module=reentrant: module(inputs(), 4).sum().backward())
for what, value in said.items():
    print(what, value)
report(always, said=[said, 1])
