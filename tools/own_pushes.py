"""Jobs that call push_pull themselves, on a slow network: stock BytePS beside Prophet, as ratios to the lower bound.

    python -m tools.own_pushes [--rate 250mbit] [--iterations 30] [--repeats 1] [--ways priorities] [--cache DIR]

Rule of this file: which jobs run and what they took. ResNet-50's gradients in 25.6 MB and 13 steps, 0.6 s of backward
and 0.3 s of forward, two workers and a server; BytePS and the network are real, computing is sleeping. Policies are
interleaved. To measure an earlier version, copy this file and own_pushes_job.py into its `tools`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from prophet_scheduler.core import settings
from prophet_scheduler.core.bound import lower_bound_s
from prophet_scheduler.core.units import parse_rate
from prophet_scheduler.engines.spec import STOCK
from prophet_scheduler.lab.cluster_config import ClusterConfig
from prophet_scheduler.lab.contenders import Contender
from prophet_scheduler.lab.iterations import time_columns, times_of
from prophet_scheduler.lab.testbed import NodeSpec, Testbed, reexec_in_user_namespace
from prophet_scheduler.models.profiles import resnet50, save_profile
from tools.builds import Limits, run_job
from tools.command_line import exit_status

WAYS = ("priorities", "waiting")
TOTAL_BYTES, STEPS = 25_600_000, 13
FIRST_PORT = 25100


@dataclass(frozen=True)
class OwnPushesJob:
    """Job of tools/own_pushes_job.py on a profile."""

    profile: Path
    iterations: int
    ways: str
    cache: str

    @property
    def command(self) -> Sequence[str]:
        """Path of the script and its arguments."""
        script = Path(__file__).with_name("own_pushes_job.py")
        return [str(script), str(self.profile), str(self.iterations), self.ways]

    def settings(self, node: str) -> Mapping[str, str]:
        """Return the environment of a Script."""
        return {settings.CACHE: self.cache}


def run(options: argparse.Namespace) -> int:
    """Run all and print a line each. Raises UserError."""
    reexec_in_user_namespace()
    cluster = ClusterConfig.model_validate({"workers": 2, "servers": 1, "bandwidth": options.rate})
    profile = resnet50(TOTAL_BYTES, STEPS)
    bound_s = lower_bound_s(profile, parse_rate(options.rate) / 8)
    print(f"bound {bound_s:.3f} s", flush=True)
    port = FIRST_PORT
    with (
        tempfile.TemporaryDirectory(prefix="prophet-") as place,
        Testbed([NodeSpec(node, cluster.bandwidth.rate(node)) for node in cluster.nodes]) as testbed,
    ):
        file = Path(place, "profile.json")
        save_profile(profile, file, "resnet50")
        job = OwnPushesJob(file, options.iterations, options.ways, options.cache)
        for number in range(options.repeats):
            for name in options.policies:
                own = {} if name == STOCK else {settings.SCHEDULER: name}
                folder = options.out / f"{name}-{number}"
                ended = run_job(testbed, cluster, Contender(name, name, own), job, folder, port, Limits())
                port += 1
                log = (folder / "worker0.log").read_text(errors="replace").splitlines()
                took_s = [float(line.split()[2]) for line in log if line.startswith("iteration ")]
                print(f"{name}: {ended.end} {ended.why} {said(took_s, bound_s)}, weights {ended.marks.weights[:8]}")
    return 0


def said(took_s: Sequence[float], bound_s: float) -> str:
    """Return the counted times of the iterations, in seconds, and their mean over the bound."""
    if not took_s:
        return "too few iterations"
    times = times_of([(took_s, len(took_s) // 2)])
    headings, (row,) = time_columns([times])
    parts = (f"{name} {value}" for name, value in zip(headings, row, strict=True))
    return f"{', '.join(parts)}, {times.headline / bound_s:.3f} of the bound"


def main(arguments: list[str] | None = None) -> int:
    """Run; exit status 2 with one line for an error of the user's."""
    parser = argparse.ArgumentParser(prog="python -m tools.own_pushes", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/own-pushes"), help="folder for the logs")
    parser.add_argument("--rate", default="250mbit", help="of each worker's link")
    parser.add_argument("--iterations", type=int, default=30)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--ways", choices=WAYS, default=WAYS[0])
    parser.add_argument("--policies", nargs="+", default=[STOCK, "prophet"])
    parser.add_argument("--cache", default=settings.OFF, help="folder of what is kept")
    options = parser.parse_args(arguments)
    return exit_status(lambda: run(options))


if __name__ == "__main__":
    sys.exit(main())
