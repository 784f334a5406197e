"""What a message costs in memory: resident bytes of worker and server over many iterations, on both builds of BytePS.

Rule of this file: which jobs are run, what is sampled, and the page made of it, docs/results/memory.md. A message is a
push or a pull of one partition. A run that is there already is not made again, so it can be interrupted. One that
needs too much time or memory is ended, and is on the page as far as it came.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import psutil
from pydantic import TypeAdapter
from rich.console import Console

from prophet_scheduler.core import settings
from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.files import write_whole
from prophet_scheduler.engines.spec import STOCK
from prophet_scheduler.lab.cluster_config import ClusterConfig
from prophet_scheduler.lab.contenders import Contender
from prophet_scheduler.lab.records import read
from prophet_scheduler.lab.testbed import NodeSpec, Testbed, reexec_in_user_namespace
from tools import kept
from tools.builds import BUILDS, Limits, ManyGradientsJob, Marks, Process, provide_build, run_job
from tools.command_line import exit_status, page_parser
from tools.markdown import shown, table
from tools.provenance import Provenance

PAGE = "memory.md"
NAME = "memory"
JOB = ManyGradientsJob(gradients=4, size_bytes=262_144, iterations=10_000)
POLICIES: Mapping[str, int] = {STOCK: 4_096_000, "prophet": settings.DEFAULT_PARTITION_BYTES}
"""Policies that are compared, with the bytes of a partition."""
CLUSTER = ClusterConfig.model_validate({"workers": 2, "servers": 1, "bandwidth": "none"})
ROLES = {"worker": "worker0", "server": "server0"}
SHOWN = (100, 500, 1_000, 2_500, 5_000, 10_000)
"""Iterations whose resident bytes are on the page."""
WARM_UP = 100
"""Iterations after which growth is counted: one-time allocations are done by then."""
MOST_BYTES = 4e9
"""Resident bytes of a process at which a run ends."""
FIRST_PORT = 24600


@dataclass
class Samples:
    """One run: `resident[role]` has the bytes at each of `iterations`; `why` it ended early, in one line."""

    build: str
    policy: str
    messages: int
    """Messages of one worker in an iteration; a server has those of all workers."""
    iterations: list[int] = field(default_factory=list)
    resident: dict[str, list[int]] = field(default_factory=lambda: {role: [] for role in ROLES})
    why: str = ""

    def look(self, marks: Marks, processes: Mapping[str, Process]) -> str | None:
        """Take a sample when another iteration is over. Returns a reason to end the run if memory runs out."""
        if marks.iteration > (self.iterations[-1] if self.iterations else 0):
            try:
                memory = {role: psutil.Process(processes[node].pid).memory_info().rss for role, node in ROLES.items()}
            except psutil.Error:  # it has just ended
                return None
            self.iterations.append(marks.iteration)
            for role, resident in memory.items():
                self.resident[role].append(resident)
            if max(memory.values()) > MOST_BYTES:
                return f"ended at {MOST_BYTES / 1e9:g} GB"
        return None

    def message_bytes(self, role: str) -> float | None:
        """Return the growth in bytes a message, the slope of a line through the samples; None if there are too few."""
        warm = np.array(self.iterations) >= WARM_UP
        if warm.sum() < 3:
            return None
        slope = np.polyfit(np.array(self.iterations)[warm], np.array(self.resident[role])[warm], 1)[0]
        return float(slope) / (self.messages * (CLUSTER.workers if role == "server" else 1))

    def at(self, role: str, iteration: int) -> int | None:
        """Return the resident bytes at the sample nearest to `iteration`; None if none is within a tenth of it."""
        near = min(range(len(self.iterations)), key=lambda n: abs(self.iterations[n] - iteration), default=None)
        if near is None or abs(self.iterations[near] - iteration) > iteration / 10:
            return None
        return self.resident[role][near]


def messages(job: ManyGradientsJob, partition_bytes: int) -> int:
    """Return the pushes and pulls of one worker in an iteration of `job`, with nothing fused."""
    return 2 * job.gradients * math.ceil(job.size_bytes / partition_bytes)


def page(results: Path) -> str:
    """Return the page, made from the kept data."""
    return kept.joined("# Memory", kept.section(results, NAME, list[Samples], "make memory", text))


def text(runs: Iterable[Samples], measured: Provenance) -> str:
    """Return the measurements as Markdown."""
    rows = []
    for run in runs:
        for role in ROLES:
            cost = run.message_bytes(role)
            resident = (run.at(role, iteration) for iteration in SHOWN)
            rows.append(
                (
                    run.build,
                    run.policy,
                    role,
                    str(run.messages * (CLUSTER.workers if role == "server" else 1)),
                    *("-" if held is None else f"{held / 1e6:.0f}" for held in resident),
                    f"{run.iterations[-1] if run.iterations else 0:,}",
                    shown(cost, ",.0f"),
                )
            )
    columns = (
        *("BytePS", "policy", "process", "messages an iteration"),
        *(f"MB at {iteration:,}" for iteration in SHOWN),
        *("iterations", "bytes a message"),
    )
    return f"""Made by `make memory`. {measured.line()}

Resident memory of a worker and of the server over the iterations of a job with {JOB.gradients} gradients of
{JOB.size_bytes // 1024} KiB, {CLUSTER.workers} workers and a server. BytePS is real; the machines are network
namespaces of one, and their links are not limited. *Corrected* is the CPU build, *released* the same without its
corrections ([page](../engine.md)). A message is a push or a pull of one partition; nothing is fused. Bytes a message
are the slope of a line through all samples after the first {WARM_UP} iterations. A run that was ended early is there
as far as it came.

{table(columns, rows)}"""


def sample(testbed: Testbed, build: str, policy: str, env: Mapping[str, str], out: Path, seconds: float) -> Samples:
    """Make one run. Raises UserError if it failed or stood still."""
    more = {} if policy == STOCK else {settings.SCHEDULER: policy, settings.FUSION: "0"}
    samples = Samples(build, policy, messages(JOB, POLICIES[policy]))
    port = FIRST_PORT + list(BUILDS).index(build) * len(POLICIES) + list(POLICIES).index(policy)
    chosen = Contender(policy, policy, {**env, **more})
    limits = Limits(whole_s=seconds)
    ended = run_job(testbed, CLUSTER, chosen, JOB, out / f"{build}-{policy}", port, limits, samples.look)
    if ended.end in ("failed", "stopped"):
        raise UserError(f"{build} {policy}: {ended.why} ({ended.marks.stage}); run it again, the other runs are kept")
    samples.why = ended.why
    return samples


def run(out: Path, results: Path, seconds: float, builds: Sequence[str]) -> int:
    """Make the runs that are not there yet, and the page of all. Raises UserError."""
    console = Console()
    reexec_in_user_namespace()
    out.mkdir(parents=True, exist_ok=True)
    runs: list[Samples] = []
    with Testbed([NodeSpec(node, None) for node in CLUSTER.nodes]) as testbed:
        for build in builds:
            env = provide_build(build, out, console)
            for policy in POLICIES:
                path = out / f"memory-{build}-{policy}.json"
                if not path.exists():
                    console.print(f"{build} {policy}: up to {JOB.iterations} iterations, {seconds:g} s")
                    samples = sample(testbed, build, policy, env, out, seconds)
                    write_whole(json.dumps(asdict(samples)), path)
                runs.append(load(path))
    kept.publish(results, NAME, list[Samples], runs, PAGE, page)
    return 0


def load(path: Path) -> Samples:
    """Return a run that was kept. Raises UserError."""
    return read(path, TypeAdapter(Samples).validate_python, "a run")


def main(arguments: list[str] | None = None) -> int:
    """Run and write; exit status 2 with one line for an error of the user's."""
    parser = page_parser("memory", __doc__)
    parser.add_argument("--out", type=Path, default=Path("build/memory"), help="folder for the runs")
    parser.add_argument("--seconds", type=float, default=200.0, help="at most for each of the four runs")
    parser.add_argument("--build", choices=BUILDS, action="append", help="only this build; both where left out")
    options = parser.parse_args(arguments)
    builds = options.build or BUILDS
    return exit_status(lambda: run(options.out, options.results, options.seconds, builds))


if __name__ == "__main__":
    sys.exit(main())
