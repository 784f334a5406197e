"""How the simulator's cost grows: wall time, events and memory over the number of workers and gradients.

Rule of this file: measuring and drawing. Each size runs in a process of its own, so that its memory is its own.
`make scaling` runs it, for about five minutes.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from prophet.core.optional import need_pyplot
from prophet.core.profile import GradientProfile, Profile

RATE = 125e6
"""Bytes per second of each worker's link."""
SIZES = ((1, 1000), (10, 1000), (100, 1000), (1000, 1000), (100, 10_000), (300, 10_000), (1000, 10_000))
"""Workers and gradients of each measurement, one iteration."""


def profile(gradients: int) -> Profile:
    """`gradients` of 100 kB in steps of ten; computing takes about as long as the transfers."""
    step_s, forward_s = 10 * 100_000 / RATE, 100_000 / RATE / 2
    return Profile(
        "even",
        tuple(
            GradientProfile(f"g{i}", 100_000, step_s * math.ceil((gradients - i) / 10), forward_s)
            for i in range(gradients)
        ),
    )


def measure(workers: int, gradients: int) -> dict[str, Any]:
    """One iteration, and the transfers that lead to the next: seconds, events and peak memory of this process."""
    from prophet.policies import get_policy
    from prophet.simulate import Cluster, Costs, Options, job_of_profile, simulate
    from prophet.simulate.job import alone

    job_profile = profile(gradients)
    began = time.perf_counter()
    job = job_of_profile(job_profile, alone(job_profile))
    links = {f"worker{index}": ((0.0, RATE),) for index in range(workers)}
    cluster = Cluster(workers, max(1, workers // 10), links, Costs(1e-5, 1e-5))
    # The second iteration's forward pass needs every transfer of the first.
    run = simulate(job, cluster, get_policy("prophet"), Options(iterations=2))
    return {
        "workers": workers,
        "gradients": gradients,
        "wall_s": time.perf_counter() - began,
        "events": run.happenings,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Wall time over n log n, on logarithmic axes: a straight line of slope 1 is what is wanted."""
    pyplot = need_pyplot()
    figure, axes = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
    work = [row["events"] * math.log2(row["events"]) for row in rows]
    axes.loglog(work, [row["wall_s"] for row in rows], "o", color="#2f6db3")
    for row, x in zip(rows, work, strict=True):
        label = f"{row['workers']} x {row['gradients']}"
        axes.annotate(label, (x, row["wall_s"]), xytext=(6, -10), textcoords="offset points", fontsize=8)
    per_unit = max(row["wall_s"] / x for row, x in zip(rows, work, strict=True))
    axes.loglog(work, [per_unit * x for x in work], linestyle="--", color="gray", linewidth=1, label="n log n")
    axes.set(xlabel="n log2 n of n events", ylabel="wall time (s)", title="workers x gradients, one iteration")
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def main(arguments: list[str] | None = None) -> int:
    """Writes scaling.json and scaling.png into the folder given."""
    parser = argparse.ArgumentParser(prog="python -m tools.scaling", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build"))
    parser.add_argument("--one", nargs=2, type=int, metavar=("WORKERS", "GRADIENTS"), help="measure one size")
    given = parser.parse_args(arguments)
    if given.one:
        print(json.dumps(measure(*given.one)))
        return 0
    rows = []
    for workers, gradients in SIZES:
        command = [sys.executable, "-m", "tools.scaling", "--one", str(workers), str(gradients)]
        rows.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
        row = rows[-1]
        print(
            f"{workers:5} workers {gradients:6} gradients: {row['wall_s']:7.2f} s, {row['events']:>11,} events,"
            f" {row['peak_bytes'] / 2**30:.2f} GiB",
            flush=True,
        )
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "scaling.json").write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    draw(rows, given.out / "scaling.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
