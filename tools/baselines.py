"""Prophet compared with other remedies for a slow network, by time to an accuracy.

Rule of this file: the ways to train, running them on the testbed, and their times, in seconds. A way that changes the
gradients may need more iterations than another, so the measure is the time until the model is good.

A rank is `python -m tools.baselines WAY`: an ordinary training script of a small transformer, with torch's remedies for
a slow network. Gradients are clipped by their global norm. Finally rank 0 prints one line of JSON: the seconds of each
iteration, and the share of words that the mean of all ranks' models predicts correctly after every EVERY iterations.
Evaluation is not timed. Before it, all ranks wait for their updates, which is timed.
"""

from __future__ import annotations

import copy
import itertools
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from rich.console import Console
from rich.progress import track
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, post_localSGD_hook, powerSGD_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.nn.parallel import DistributedDataParallel

from prophet_scheduler.core import settings
from prophet_scheduler.lab.jobs.datasets import text
from prophet_scheduler.lab.jobs.pytorch import transformer
from prophet_scheduler.lab.jobs.pytorch.training import accuracy
from prophet_scheduler.lab.own_script import Links, testbed_of
from tools.jobs import said_by_ranks

ITERATIONS = 96
BATCH = 32
LEARNING_RATE, CLIP_NORM = 0.0004, 1.0
EVERY = 4
"""Iterations between two evaluations of the model."""
FIRST = 10
"""Iterations with exact averages before PowerSGD or local SGD begins, as their authors advise."""
RATE_BPS = 250e6
TARGET = 0.85
"""Share of correct predictions to reach; at most 0.9 of the words are predictable."""


@dataclass(frozen=True)
class Way:
    """One way to train. `hook` is the job's remedy, and `size` its parameter: bucket MB, matrix rank or local steps."""

    words: str
    hook: str = ""
    size: int = 0
    prophet: bool = False


WAYS: Mapping[str, Way] = {
    "ddp": Way("DDP as it comes"),
    "bucket": Way("DDP, buckets of 1 MB", "bucket", 1),
    "prophet": Way("Prophet", prophet=True),
    "fp16": Way("DDP, fp16 hook", "fp16"),
    "prophet-fp16": Way("Prophet, fp16 hook", "fp16", prophet=True),
    "powersgd-4": Way("DDP, PowerSGD of rank 4", "powersgd", 4),
    "prophet-powersgd-4": Way("Prophet, PowerSGD of rank 4", "powersgd", 4, prophet=True),
    "powersgd-1": Way("DDP, PowerSGD of rank 1", "powersgd", 1),
    "local-4": Way("DDP, local SGD, 4 steps", "local", 4),
    "local-16": Way("DDP, local SGD, 16 steps", "local", 16),
}


@dataclass(frozen=True)
class Trained:
    """One run: seconds of each iteration, and the share of correct predictions after every EVERY iterations."""

    way: str
    bandwidth_bps: float
    iterations_s: Sequence[float]
    right: Sequence[float]

    def seconds_to(self, accuracy: float) -> float | None:
        """Return the time to the first evaluation with this accuracy; None if there is none."""
        ended_s = list(itertools.accumulate(self.iterations_s))
        looks = zip(ended_s[EVERY - 1 :: EVERY], self.right, strict=True)
        return next((time_s for time_s, right in looks if right >= accuracy), None)


def train(way: str, bandwidth_bps: float) -> Trained:
    """Train once on a testbed with two workers. Raises UserError."""
    own = {settings.DDP_SCHEDULER: "prophet", settings.CACHE: "off"} if WAYS[way].prophet else {}
    with testbed_of([sys.executable], Links(2, bandwidth_bps, 0.0)) as (workers, testbed):
        return Trained(way, bandwidth_bps, **said_by_ranks(["tools.baselines", way], workers, testbed, own))


def measure(out: Path, results: Path) -> list[list[Trained]]:
    """Train in each way, and return the runs grouped by rate. Raises UserError."""
    return [[train(way, RATE_BPS) for way in track(WAYS, "baselines", console=Console(stderr=True))]]


def register(ddp: DistributedDataParallel, way: Way) -> Callable[[], None]:
    """Register the way's hook. Return the function to call after each step."""
    if way.hook == "fp16":
        ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif way.hook == "powersgd":
        power = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=way.size, start_powerSGD_iter=FIRST)
        ddp.register_comm_hook(power, powerSGD_hook.powerSGD_hook)
    elif way.hook == "local":
        own, _ = dist.new_subgroups(1)
        local = post_localSGD_hook.PostLocalSGDState(None, own, start_localSGD_iter=FIRST)
        ddp.register_comm_hook(local, post_localSGD_hook.post_localSGD_hook)
        averager = PeriodicModelAverager(period=way.size, warmup_steps=FIRST)
        return lambda: averager.average_parameters(ddp.parameters())
    return lambda: None


def right(model: nn.Module, sentences: torch.Tensor) -> float:
    """Return the share of words that the mean of all ranks' models predicts."""
    mean = copy.deepcopy(model)
    for param in mean.parameters():
        dist.all_reduce(param.data)
        param.data /= dist.get_world_size()
    return accuracy(mean, sentences[:, :-1], sentences[:, 1:])


def main(way: Way) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, words = dist.get_rank(), transformer.SHAPES["medium"][2]
    torch.manual_seed(0)
    model = transformer.make_model("medium")
    ddp = DistributedDataParallel(model, bucket_cap_mb=way.size if way.hook == "bucket" else None)
    optimizer = transformer.make_optimizer(model, LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, transformer.rate_of)
    after_step = register(ddp, way)
    sentences = torch.from_numpy(text(transformer.TEST_SENTENCES, transformer.LENGTH + 1, words, transformer.TEST_SEED))
    result: dict[str, list[float]] = {"iterations_s": [], "right": []}
    for iteration in range(ITERATIONS):
        began = time.monotonic()
        optimizer.zero_grad()
        batch = text(BATCH, transformer.LENGTH + 1, words, rank * ITERATIONS + iteration)
        transformer.loss_of(ddp, torch.from_numpy(batch)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
        optimizer.step()
        schedule.step()
        after_step()
        evaluated = not (iteration + 1) % EVERY
        if evaluated:
            dist.all_reduce(sum((param.detach().sum() for param in model.parameters()), torch.zeros(())))
        result["iterations_s"].append(time.monotonic() - began)
        if evaluated:
            result["right"].append(right(model, sentences))
            dist.barrier()
    if rank == 0:
        print(json.dumps(result))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(WAYS[sys.argv[1]])
