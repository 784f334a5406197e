"""Settings that a program changes for a while: around clipping, around step(), and between step() and the next use."""

import contextlib

import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(16, 48), nn.ReLU(), nn.Linear(48, 32), nn.ReLU(), nn.Linear(32, 10))
ddp = DistributedDataParallel(model)
parts = [list(model[place].parameters()) for place in (0, 2, 4)]
# An optimizer that multiplies matrices, and parameters whose state is made later than others'.
optimizer = torch.optim.Adafactor(parts[0], lr=1e-2)
other = torch.optim.AdamW(parts[1], lr=1e-2)


@contextlib.contextmanager
def setting(change, value, before):
    change(value)
    try:
        yield
    finally:
        change(before)


WAYS = (
    lambda: setting(torch.set_default_dtype, torch.float64, torch.float32),
    lambda: setting(torch.set_default_dtype, torch.bfloat16, torch.float32),
    lambda: setting(torch.set_default_device, "meta", None),
    lambda: torch.device("meta"),
    lambda: torch.autocast("cpu"),
    lambda: torch.autocast("cpu", torch.float16),
    torch.inference_mode,
    lambda: setting(torch.set_flush_denormal, True, False),
    lambda: setting(torch.use_deterministic_algorithms, True, False),
    contextlib.nullcontext,
)
AT_STEP = [way for place, way in enumerate(WAYS) if place not in (2, 3, 5, 6)]
"""Ways that work around step(); the others end with an error, or with numbers that are not finite."""

torch.manual_seed(100 + dist.get_rank())
losses = []
for iteration in range(3 * len(WAYS)):
    inputs, labels = torch.randn(16, 16), torch.randint(10, (16,))
    optimizer.zero_grad()
    other.zero_grad()
    if iteration == 12:
        other.add_param_group({"params": parts[2]})
    loss = nn.functional.cross_entropy(ddp(inputs), labels)
    loss.backward()
    at_clip = WAYS[iteration % 2]  # a default type that no gradient has
    with at_clip():
        nn.utils.clip_grad_norm_(model.parameters(), 0.3)
    with AT_STEP[iteration % len(AT_STEP)]():
        optimizer.step()
        other.step()
    with WAYS[iteration % len(WAYS)]():
        for param in model.parameters():
            param.detach().sum()
    losses.append(loss.item())
sizes = [value.element_size() for state in other.state.values() for value in state.values()]
report(ddp, states=[optimizer.state_dict(), other.state_dict()], losses=losses, sizes=sizes)
dist.destroy_process_group()
