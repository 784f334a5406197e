"""Models that are dropped right after step(), while the program keeps parts of some: what it keeps is right, and
nothing of the rest stays, though garbage is never collected.
"""

import gc
import threading
import weakref
from collections import defaultdict
from pathlib import Path

import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
gc.disable()
KEEPS = {
    "nothing": lambda ddp, optimizer: None,
    "the module": lambda ddp, optimizer: ddp.module,
    "a layer": lambda ddp, optimizer: ddp.module[2],
    "the wrapper": lambda ddp, optimizer: ddp,
    "parameters": lambda ddp, optimizer: [ddp.module[0].weight],
    "the optimizer": lambda ddp, optimizer: optimizer,
    "a schedule": lambda ddp, optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1),
    "groups": lambda ddp, optimizer: optimizer.param_groups,
}
EARLIER = {
    "a state of before": lambda ddp, optimizer: ddp.state_dict(),
    "data of before": lambda ddp, optimizer: [p.data for p in ddp.parameters()],
    "a view of before": lambda ddp, optimizer: [ddp.module[0].weight.detach().view(-1)[3:9]],
    "a gradient": lambda ddp, optimizer: [ddp.module[0].weight.grad],
    "the optimizer's state": lambda ddp, optimizer: [optimizer.state[ddp.module[0].weight]["exp_avg"]],
}


def tensors_of(kept):
    if isinstance(kept, nn.Module):
        return list(kept.parameters())
    if hasattr(kept, "optimizer"):
        kept = kept.optimizer
    if hasattr(kept, "param_groups"):
        return [kept.state[p]["exp_avg"] for group in kept.param_groups for p in group["params"]] + tensors_of(
            kept.param_groups
        )
    if isinstance(kept, dict):
        return list(kept.values())
    if kept and isinstance(kept[0], dict):
        return [p for group in kept for p in group["params"]]
    return list(kept)


def held_bytes():
    """Return the bytes of all tensors of this process."""
    storages = {}
    for value in gc.get_objects():
        if issubclass(type(value), torch.Tensor):
            storages[value.untyped_storage().data_ptr()] = value.untyped_storage().nbytes()
    return sum(storages.values())


def count(of):
    return len(list(Path("/proc/self", of).iterdir()))


def trained(trial, keeps):
    torch.manual_seed(trial)
    ddp = DistributedDataParallel(nn.Sequential(nn.Linear(32, 48), nn.ReLU(), nn.Linear(48, 10)))
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=0.01)
    torch.manual_seed(100 * trial + dist.get_rank())
    kept = None
    for step in range(4):
        optimizer.zero_grad()
        nn.functional.cross_entropy(ddp(torch.randn(8, 32)), torch.randint(10, (8,))).backward()
        if step == 3 and keeps in EARLIER:
            kept = EARLIER[keeps](ddp, optimizer)
        optimizer.step()
    if keeps in KEEPS:
        kept = KEEPS[keeps](ddp, optimizer)
    parts = ddp, ddp.module, optimizer, ddp.module[2].weight
    return kept, [weakref.ref(part) for part in parts]


logged = defaultdict(list)
for trial, keeps in enumerate((*KEEPS, *EARLIER)):
    kept, _ = trained(trial, keeps)
    logged[keeps] += [tensor.detach().clone() for tensor in tensors_of(kept)] if kept is not None else [torch.ones(1)]
    del kept
alive, sizes, threads, files = [], [], [], []
collections = [row["collections"] for row in gc.get_stats()]
for trial in range(16):
    _, references = trained(trial, "nothing")
    alive.append([reference() is not None for reference in references])
    sizes.append(held_bytes())
    threads.append(count("task") - threading.active_count())  # threads of libraries
    files.append(count("fd"))
flat = {
    # How much of the last model or two is still on its way may differ. A model and its optimizer are 25,000 bytes.
    name: max(values[8:]) <= max(values[4:8]) + slack
    for name, values, slack in (("bytes", sizes, 150_000), ("threads", threads, 4), ("files", files, 6))
}
flat["nobody collected garbage"] = collections == [row["collections"] for row in gc.get_stats()]
print("alive", alive[-1], "bytes", sizes, "threads", threads, "files", files)
logged = {name.replace(" ", "_"): values for name, values in logged.items()}
report(logged.pop("the_module"), alive=[sum(map(sum, alive))], flat=flat, **logged)
