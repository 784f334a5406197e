"""A worker that trains on the machine's first GPU, on BytePS or with DistributedDataParallel; tools/gpu.py times it.

    gpu_job.py ENGINE MODEL ITERATIONS FOLDER [half] [clips] [looks]

Rule of this file: an ordinary program, which knows nothing of Prophet. It writes FOLDER/workerN.json: seconds of each
iteration, values it saw, and a digest of these and the weights. ENGINE is ddp, or anything else for BytePS. `half`:
gradients are sent in half precision; `clips`: their global norm is clipped; `looks`: two backward passes make a
gradient, each iteration waits for the device, and at times a second stream reads gradients and weights. Without a GPU
the processor trains, over gloo.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

BATCHES = 8
"""Number of batches that iterations use in turn. They are on the device before the first iteration."""
CLIPPED_TO = 1.0


def model_of(name: str) -> nn.Module:
    """Return a model: `resnet50` is torchvision's, `transformer` has six layers 768 wide, `small` is for tests."""
    if name == "resnet50":
        from torchvision.models import resnet50

        model: nn.Module = resnet50(weights=None)
        return model
    count, width, words = (6, 768, 8192) if name == "transformer" else (1, 64, 128)
    layers = [
        nn.TransformerEncoderLayer(width, width // 64, 4 * width, dropout=0.0, batch_first=True) for _ in range(count)
    ]
    return nn.Sequential(nn.Embedding(words, width), *layers, nn.Linear(width, words), nn.Flatten(0, 1))


def batch_of(name: str, number: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (inputs, classes), different ones on each rank."""
    generator = torch.Generator().manual_seed(1000 * number + rank)
    if name == "resnet50":
        images = torch.randn(32, 3, 224, 224, generator=generator)
        return images, torch.randint(0, 1000, (32,), generator=generator)
    tokens = torch.randint(0, 8192 if name == "transformer" else 128, (32, 128), generator=generator)
    return tokens, tokens.roll(-1, 1).flatten()


class OnDdp:
    """DistributedDataParallel, over NCCL if there is a GPU, else over gloo."""

    def __init__(self) -> None:
        torch.distributed.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
        self.rank = torch.distributed.get_rank()

    def begin(self, model: nn.Module, optimizer: Any, passes: int, half: bool) -> tuple[Any, Any]:
        on_gpu = next(model.parameters()).is_cuda
        ddp = nn.parallel.DistributedDataParallel(model, device_ids=[0] if on_gpu else None)
        if half:
            ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
        return ddp, optimizer

    def unsynchronized(self, model: Any) -> Any:
        return model.no_sync()

    def gradients(self, optimizer: Any) -> Any:
        """Wait for the averages. Return the context of the step that follows."""
        return contextlib.nullcontext()

    def end(self) -> None:
        torch.distributed.destroy_process_group()
        # Skip Python's finalization: torch would wait there, holding the GIL, for gloo's thread, which may wait for the
        # GIL to free a hook.
        os._exit(0)


class OnByteps(OnDdp):
    """BytePS as its examples use it."""

    def __init__(self) -> None:
        import byteps.torch as bps

        bps.init()
        self._bps = bps
        self.rank: int = bps.rank()
        device = "cuda" if torch.cuda.is_available() else "cpu"
        for step in range(10):  # new tensors each time, under the same names
            for where in dict.fromkeys([device, "cpu"]):
                own = torch.full((300_000,), float(self.rank + step), device=where)
                both = bps.push_pull(own, average=False, name=f"sums of {where}")
                if not (both.eq(2 * step + 1).all() and own.eq(self.rank + step).all()):
                    raise SystemExit(f"a sum on {where} is wrong in step {step}")

    def begin(self, model: nn.Module, optimizer: Any, passes: int, half: bool) -> tuple[Any, Any]:
        more: dict[str, Any] = {"compression": self._bps.Compression.fp16} if half else {}
        named = model.named_parameters()
        distributed = self._bps.DistributedOptimizer(optimizer, named, backward_passes_per_step=passes, **more)
        self._bps.broadcast_parameters(model.state_dict(), root_rank=0)
        self._bps.broadcast_optimizer_state(distributed, root_rank=0)
        return model, distributed

    def unsynchronized(self, model: Any) -> Any:
        return contextlib.nullcontext()

    def gradients(self, optimizer: Any) -> Any:
        optimizer.synchronize()
        return optimizer.skip_synchronize()

    def end(self) -> None: ...


def norms(values: Iterable[torch.Tensor | None], beside: torch.cuda.Stream | None) -> float:
    """Return the sum of norms, computed on the stream `beside` after the current stream's work."""
    if beside is not None:
        beside.wait_stream(torch.cuda.current_stream())
    with contextlib.nullcontext() if beside is None else torch.cuda.stream(beside):
        total = torch.stack([value.norm() for value in values if value is not None]).sum()
    if beside is not None:
        beside.synchronize()
    return float(total)


def main() -> None:
    name, kind, iterations, folder, *how = sys.argv[1:]
    half, clips, looks = (word in how for word in ("half", "clips", "looks"))
    on_gpu, passes = torch.cuda.is_available(), 2 if looks else 1
    device = torch.device("cuda:0" if on_gpu else "cpu")
    wait: Callable[[], None] = torch.cuda.synchronize if on_gpu else lambda: None
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
    engine = OnDdp() if name == "ddp" else OnByteps()
    torch.manual_seed(engine.rank)  # Rank 0's initial weights are broadcast.
    model = model_of(kind).to(device)
    params = list(model.parameters())
    sgd = kind == "resnet50"
    own: Any = torch.optim.SGD(params, lr=0.05, momentum=0.9) if sgd else torch.optim.AdamW(params, lr=1e-4)
    trained, optimizer = engine.begin(model, own, passes, half)
    batches = [tuple(part.to(device) for part in batch_of(kind, n, engine.rank)) for n in range(BATCHES)]
    beside, loss_of, seen = torch.cuda.Stream() if on_gpu else None, nn.CrossEntropyLoss(), list[float]()
    wait()
    marks = [time.monotonic()]
    for iteration in range(int(iterations)):
        inputs, classes = batches[iteration % BATCHES]
        optimizer.zero_grad()
        for n in range(passes):
            with contextlib.nullcontext() if n == passes - 1 else engine.unsynchronized(trained):
                loss = loss_of(trained(inputs), classes)
                loss.backward()
        looks_now = looks and iteration % 3 == 0
        with engine.gradients(optimizer) if clips or looks_now else contextlib.nullcontext():
            if looks_now:
                seen.append(norms([param.grad for param in params], beside))
            if clips:
                nn.utils.clip_grad_norm_(params, CLIPPED_TO)
            optimizer.step()
        if looks and iteration % 4 == 0:
            seen.append(norms(params, beside))
        if looks:
            wait()
        seen.append(float(loss))
        marks.append(time.monotonic())
    digest = hashlib.sha256(repr(seen).encode())
    for value in model.state_dict().values():
        digest.update(value.cpu().numpy().tobytes())
    result = {
        "gradient_bytes": sum(param.numel() * param.element_size() for param in params),
        "seconds": [after - before for before, after in itertools.pairwise(marks)],
        "seen": seen,
        "digest": digest.hexdigest()[:12],
        "device_bytes": torch.cuda.max_memory_allocated() if on_gpu else 0,
    }
    Path(folder, f"worker{engine.rank}.json").write_text(json.dumps(result))
    engine.end()


if __name__ == "__main__":
    main()
