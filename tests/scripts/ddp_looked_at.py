"""A job that is looked at: by profilers, counters, modes, hooks, tracers, each for some iterations."""

import contextlib
import cProfile
import faulthandler
import sys
import threading
import tracemalloc

import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

dist.init_process_group("gloo")
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 128), nn.ReLU(), nn.Linear(128, 10))
ddp = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(ddp.parameters(), lr=0.01)


class Logged(TorchDispatchMode):
    calls = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        Logged.calls += 1
        return func(*args, **(kwargs or {}))


class Counted(TorchFunctionMode):
    calls = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        Counted.calls += 1
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def traced_lines():
    """Trace lines, as a debugger or a measure of coverage does."""
    lines = 0

    def trace(frame, event, argument):
        nonlocal lines
        lines += 1
        return trace

    before = sys.gettrace()
    threading.settrace(trace)
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)
        threading.settrace(before)


@contextlib.contextmanager
def memory_traced():
    tracemalloc.start()
    try:
        yield
        tracemalloc.take_snapshot()
    finally:
        if sys.version_info >= (3, 13, 2):  # Older releases can crash while a thread takes the GIL (gh-128679).
            tracemalloc.stop()


@contextlib.contextmanager
def stacks_later():
    faulthandler.dump_traceback_later(600)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


@contextlib.contextmanager
def execution_trace():
    observer = torch.profiler.ExecutionTraceObserver()
    observer.register_callback("trace.json")
    observer.start()
    try:
        yield
    finally:
        observer.stop()
        observer.unregister_callback()


@contextlib.contextmanager
def some_dtype():
    """Set a default dtype, as a library may, while the last step's updates are still to come."""
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


flops = FlopCounterMode(display=False)
WAYS = (
    torch.profiler.profile,
    lambda: torch.profiler.profile(profile_memory=True, with_stack=True, record_shapes=True),
    torch.autograd.profiler.profile,
    lambda: torch.profiler.record_function("iteration"),
    execution_trace,
    cProfile.Profile,
    traced_lines,
    memory_traced,
    stacks_later,
    torch.autograd.detect_anomaly,
    lambda: flops,
    Logged,
    Counted,
    torch.autograd.graph.save_on_cpu,
    lambda: torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x),
    some_dtype,
)

torch.manual_seed(100 + dist.get_rank())
losses = []


def forward_and_backward():
    inputs, labels = torch.randn(16, 32, dtype=torch.float32), torch.randint(10, (16,))
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(ddp(inputs), labels)
    loss.backward()
    losses.append(loss.detach())


for way in WAYS:
    with way():  # The tool sees the updates of the step before, and ends before those of this step are due.
        forward_and_backward()
        optimizer.step()
    forward_and_backward()
    optimizer.step()
    with way():  # The tool has no part in the step.
        sum(param.detach().sum() for param in model.parameters())
    forward_and_backward()
    with way():  # The tool sees nothing but the step.
        optimizer.step()

traces = []
schedule = torch.profiler.schedule(wait=1, warmup=1, active=2, repeat=2)
with torch.profiler.profile(
    schedule=schedule, on_trace_ready=lambda each: traces.append(each.key_averages())
) as profile:
    for _ in range(9):
        forward_and_backward()
        optimizer.step()
        profile.step()
assert len(traces) == 2

report(
    ddp,
    state=optimizer.state_dict(),
    losses=[loss.item() for loss in losses],
    bytes=[value.element_size() for state in optimizer.state.values() for value in state.values()],
    flops=flops.get_total_flops(),
)
dist.destroy_process_group()
