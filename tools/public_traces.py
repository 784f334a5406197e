"""Jobs that others recorded: traces of torch.profiler in public repositories, and what Prophet would do with each.

Rule of this file: the traces, and the networks on which each is simulated. `make traces` needs a clone of each
repository in `folder`, and takes about a minute. Times are seconds, sizes bytes, rates bits per second.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.progress import track

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.files import read_bytes
from prophet_scheduler.lab.config import experiment_of
from prophet_scheduler.models import zoo
from prophet_scheduler.models.kineto import profile_of_trace
from prophet_scheduler.models.profiles import save_profile
from tools.figures import OURS, STOCK
from tools.gain_map import BUCKETS, WARM_UP, times_of

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


def simulated(profile: Path, ranks: int, rate_bps: float) -> tuple[float, float, float, float]:
    """Simulate the job of this profile. Return the bound, and the times of DDP, its best bucket size and Prophet."""
    job = {"kind": "replay", "profile": str(profile), "batch_size": 1, "iterations": 2 * WARM_UP, "warmup": WARM_UP}
    cluster = {"workers": ranks, "bandwidth": rate_bps}
    policies = [STOCK, *BUCKETS, OURS]
    config = {"engine": "ddp", "job": job, "cluster": cluster, "policies": policies}
    (cell,) = experiment_of(config, profile).cells
    bound_s, times_s = times_of(cell)
    ours_s = times_s.pop(OURS)
    return bound_s, times_s[STOCK], min(times_s.values()), ours_s


def measure(out: Path, results: Path, *, folder: str = "build/traces") -> list[dict[str, Any]]:
    """Simulate all; `times_s` has those on each of NETWORKS. Raises UserError if a trace is missing."""
    jobs = list[dict[str, Any]]()
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
        whole = {key: getattr(profile, key) for key in ("forward_s", "backward_s")}
        sizes_of = {"gradients": len(profile.gradients), "size_bytes": profile.total_bytes}
        jobs.append({"name": name, **sizes_of, **whole, "times_s": times_s})
    return jobs
