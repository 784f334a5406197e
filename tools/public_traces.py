"""Jobs that others recorded: traces of torch.profiler in public repositories, and what Prophet would do with each.

Rule of this file: the traces, and simulations of each on several networks. `make traces` needs a clone of each
repository in the folder `folder`, and takes about a minute. Times are seconds, sizes bytes, rates bits per second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.progress import track

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.files import read_bytes
from prophet_scheduler.engines.ddp import BUCKET_CAP_MB
from prophet_scheduler.lab.config import experiment_of
from prophet_scheduler.lab.results import lower_bound
from prophet_scheduler.lab.simulated import prepared, run_planned
from prophet_scheduler.models import zoo
from prophet_scheduler.models.kineto import profile_of_trace
from prophet_scheduler.models.profiles import save_profile
from tools.figures import OURS, STOCK

ANALYSIS = "HolisticTraceAnalysis/tests/data"
REPLAY = "param/et_replay/tests/inputs"
TRACES: Mapping[str, tuple[str, str]] = {
    "ResNet-50, A100": (f"{ANALYSIS}/nccl_parser_config/nccl_data.json.gz", "resnet50"),
    "ResNet-50, V100": (f"{ANALYSIS}/ns_resolution_trace/rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz", "resnet50"),
    "ResNet-18, RTX 2080 Ti": (f"{REPLAY}/resnet_kineto.json.gz", "resnet18"),
    "recommendation, A100": (f"{ANALYSIS}/trace_diff/control/control.json.gz", ""),
    "recommendation, V100": (f"{ANALYSIS}/trace_diff/test/test.json.gz", ""),
    "recommendation, A100 of 80 GB": (f"{ANALYSIS}/negative_queue_length_values_check/rank0.json.gz", ""),
}
"""Files below the clones, by model and GPU, and the built-in model that has the sizes where the trace has none."""
NETWORKS = ((8, 1e9), (8, 10e9), (8, 25e9), (64, 10e9), (64, 100e9))
"""Ranks, and the rate of each rank's link."""
BUCKETS_MB = (1, 5, 10, 50, 100)
"""Bucket sizes beside DDP's default."""
WARM_UP = 3


@dataclass(frozen=True)
class Traced:
    """One job. `times_s` has for each of NETWORKS the bound, DDP's time, that of its best bucket size, and Prophet's."""

    name: str
    gradients: int
    size_bytes: int
    forward_s: float
    backward_s: float
    times_s: Sequence[tuple[float, float, float, float]]


def simulated(profile: Path, ranks: int, rate_bps: float) -> tuple[float, float, float, float]:
    """Simulate the job of this profile; return one of Traced.times_s."""
    buckets = [{"name": f"{STOCK}-{mb}", "base": STOCK, "env": {BUCKET_CAP_MB: str(mb)}} for mb in BUCKETS_MB]
    config = {
        "engine": "ddp",
        "job": {"kind": "replay", "profile": str(profile), "batch_size": 1, "iterations": 2 * WARM_UP, "warmup": WARM_UP},
        "cluster": {"workers": ranks, "bandwidth": rate_bps},
        "policies": [STOCK, *buckets, OURS],
    }
    (cell,) = experiment_of(config, profile).cells
    times_s = {}
    for contender in cell.policies:
        planned = prepared(cell.of(contender), contender)
        assert planned is not None  # The simulator knows DDP and Prophet.
        times_s[contender.name] = float(np.mean(run_planned(planned).iteration_s(WARM_UP)))
    bound_s = lower_bound(cell)
    assert bound_s is not None  # The job is a replay, and has a rate.
    ours_s = times_s.pop(OURS)
    return bound_s, times_s[STOCK], min(times_s.values()), ours_s


def measure(out: Path, results: Path, *, folder: str = "build/traces") -> list[Traced]:
    """Simulate all. Raises UserError if a trace is missing."""
    jobs = []
    out.mkdir(parents=True, exist_ok=True)
    for name, (place, model) in track(TRACES.items(), "traces"):
        path = Path(folder, place)
        if not path.exists():
            raise UserError(f"{path}: no such trace; clone its repository into {folder}, or name folder=FOLDER")
        sizes = [gradient.size_bytes for gradient in zoo.profile(model).gradients] if model else []
        profile = profile_of_trace(read_bytes(path), path, sizes)
        kept = (out / f"{len(jobs)}.json").absolute()
        save_profile(profile, kept, f"trace {place}")
        times_s = [simulated(kept, *network) for network in NETWORKS]
        whole = profile.total_bytes, profile.forward_s, profile.backward_s
        jobs.append(Traced(name, len(profile.gradients), *whole, times_s))
    return jobs
