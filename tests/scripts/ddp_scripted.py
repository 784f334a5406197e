"""A module in TorchScript that shares its parameters is saved, copied and made faster right after a step."""

import copy
import io
import warnings

import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.nn.parallel import DistributedDataParallel

warnings.simplefilter("ignore", DeprecationWarning)
warnings.simplefilter("ignore", FutureWarning)
dist.init_process_group("gloo")
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 128), nn.ReLU(), nn.Linear(128, 10))
ddp = DistributedDataParallel(model)
optimizer = torch.optim.Adam(ddp.parameters(), lr=0.01)
scripted = torch.jit.script(model).eval()
held_out = torch.randn(4, 32)


def saved():
    buffer = io.BytesIO()
    torch.jit.save(scripted, buffer)
    buffer.seek(0)
    return torch.jit.load(buffer)


def saved_to_a_file():
    scripted.save("model.pt")
    return torch.jit.load("model.pt")


def in_a_buffer():
    return torch.jit.load(io.BytesIO(scripted.save_to_buffer()))


def copied():
    return copy.deepcopy(scripted)


def frozen():
    return torch.jit.optimize_for_inference(torch.jit.freeze(scripted))


def for_inference():
    return torch.jit.optimize_for_inference(scripted)


torch.manual_seed(100 + dist.get_rank())
scores = []
for iteration in range(18):
    optimizer.zero_grad()
    nn.functional.cross_entropy(ddp(torch.randn(16, 32)), torch.randint(10, (16,))).backward()
    optimizer.step()
    made = (saved, saved_to_a_file, in_a_buffer, copied, frozen, for_inference)[iteration % 6]()
    with torch.no_grad():
        scores.append(made(held_out).logsumexp(1).mean().item())
report(ddp, scores=scores)
