"""Rank that trains a small transformer for real, in one of the ways of tools/baselines.py: `... baselines_job WAY`.

Rule of this file: an ordinary training script, with what torch offers against a slow network. Gradients are clipped by
the norm of all. At its end rank 0 prints one line of JSON: the seconds of each iteration, and the share of words that
the mean of all ranks' models predicts rightly after every EVERY of them. That time counts for none: before a look all
ranks wait for their updates, which does count.
"""

from __future__ import annotations

import copy
import itertools
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, post_localSGD_hook, powerSGD_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.nn.parallel import DistributedDataParallel

from prophet_scheduler.lab.jobs.datasets import text
from prophet_scheduler.lab.jobs.pytorch import transformer
from prophet_scheduler.lab.jobs.pytorch.training import accuracy
from tools.baselines import EVERY, FIRST, ITERATIONS, WAYS, Way

BATCH = 32
LEARNING_RATE, RISING, CLIP_NORM = 0.0004, 10, 1.0


def register(ddp: DistributedDataParallel, way: Way) -> Callable[[], None]:
    """Register the way's hook. Returns what follows each step."""
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


def mean_of(model: nn.Module) -> nn.Module:
    mean = copy.deepcopy(model)
    for param in mean.parameters():
        dist.all_reduce(param.data)
        param.data /= dist.get_world_size()
    return mean


def main(way: Way) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, words = dist.get_rank(), transformer.SHAPES["medium"][2]
    torch.manual_seed(0)
    model = transformer.make_model("medium")
    ddp = DistributedDataParallel(model, bucket_cap_mb=way.size if way.hook == "bucket" else None)
    optimizer = transformer.make_optimizer(model, LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: transformer.rate_of(step, RISING))
    after_step = register(ddp, way)
    sentences = torch.from_numpy(text(transformer.TEST_SENTENCES, transformer.LENGTH + 1, words, transformer.TEST_SEED))
    began: list[float] = [time.monotonic()]
    untimed_s, right = [0.0], []
    for iteration in range(ITERATIONS):
        optimizer.zero_grad()
        batch = text(BATCH, transformer.LENGTH + 1, words, rank * ITERATIONS + iteration)
        transformer.loss_of(ddp, torch.from_numpy(batch)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
        optimizer.step()
        schedule.step()
        after_step()
        off_s = 0.0
        if not (iteration + 1) % EVERY:
            dist.all_reduce(sum((param.detach().sum() for param in model.parameters()), torch.zeros(())))
            look_s = time.monotonic()
            right.append(accuracy(mean_of(model), sentences[:, :-1], sentences[:, 1:]))
            dist.barrier()
            off_s = time.monotonic() - look_s
        began.append(time.monotonic())
        untimed_s.append(off_s)
    if rank == 0:
        spans = zip(itertools.pairwise(began), untimed_s[1:], strict=True)
        result: dict[str, Any] = {"iterations_s": [end - begin - off for (begin, end), off in spans], "right": right}
        print(json.dumps(result))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(WAYS[sys.argv[1]])
