"""Whether a job ends whose workers have more messages to send than a socket of the released ps-lite bears.

Rule of this file: which jobs are started, how their ends are counted, and the page made of them,
docs/results/backlog.md. Starts of the policies are interleaved. A start that is counted already is not made again, so
it can be interrupted and goes on with more starts later. None is repeated for how it ended.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from prophet_scheduler.core import settings
from prophet_scheduler.core.units import format_rate, parse_rate
from prophet_scheduler.engines.spec import STOCK
from prophet_scheduler.lab.cluster_config import ClusterConfig
from prophet_scheduler.lab.contenders import Contender
from prophet_scheduler.lab.testbed import NodeSpec, Testbed, reexec_in_user_namespace
from tools import kept
from tools.builds import BUILDS, Ended, Limits, ManyGradientsJob, provide_build, run_job
from tools.command_line import exit_status, page_parser
from tools.markdown import table
from tools.pieces import add_piece, read_pieces
from tools.provenance import Provenance

PAGE = "backlog.md"
NAME = "backlog"
POLICIES = (STOCK, "fifo", "p3", "prophet")
SIZE_BYTES = 4_096
ITERATIONS = 3
FIRST_PORT = 24700
PORTS = 250
"""Number of ports taken in turn, since one stays busy for a while."""
STAGES = ("at the start", "in training")


@dataclass(frozen=True)
class Start:
    """One job and how it ended; `seconds` is its duration."""

    policy: str
    end: str
    stage: str
    iteration: int
    weights: str
    seconds: float
    why: str


def counted(policy: str, ended: Ended, seconds: float) -> Start:
    """Return what is kept of a job."""
    marks = ended.marks
    return Start(policy, ended.end, marks.stage, marks.iteration, marks.weights, seconds, ended.why)


def row(policy: str, starts: Sequence[Start]) -> tuple[str, ...]:
    """Return one policy's row in the page's table."""
    trained = [start for start in starts if start.end == "trained"]
    stopped = [[start for start in starts if start.end == "stopped" and start.stage == stage] for stage in STAGES]
    others = [start for start in starts if start.end not in ("trained", "stopped")]
    took = f"{statistics.median(start.seconds for start in trained):.0f}" if trained else "-"
    return (policy, *(str(len(group)) for group in (starts, trained, *stopped, others)), took)


@dataclass(frozen=True)
class Starts:
    """Data of the page: which job was started how often, and each end. `rate` is in bits per second."""

    build: str
    job: ManyGradientsJob
    rate: float
    limits: Limits
    starts: Sequence[Start]


def page(results: Path) -> str:
    """Return the page, made from the kept data."""
    return kept.joined("# Many small gradients", kept.section(results, NAME, Starts, "make backlog", text))


def text(data: Starts, measured: Provenance) -> str:
    """Return the measurements as Markdown."""
    starts, job, limits, rate = data.starts, data.job, data.limits, format_rate(data.rate)
    names = [name for name in POLICIES if any(start.policy == name for start in starts)]
    rows = [row(name, [start for start in starts if start.policy == name]) for name in names]
    columns = (
        *("policy", "starts", "trained", *(f"stopped {stage}" for stage in STAGES)),
        *("failed or late", "seconds (median of trained)"),
    )
    digests = {start.weights for start in starts if start.end == "trained"}
    alike = {0: "None trained", 1: "All that trained have the same weights"}.get(len(digests), "Weights differ")
    late = [f"- {start.policy}: {start.why}, {start.stage}" for start in starts if start.end in ("failed", "late")]
    return f"""Made by `make backlog`. {measured.line()}

A job with {job.gradients:,} gradients of {job.size_bytes} bytes, nothing fused, {job.iterations} iterations, two
workers at {rate} and a server, on BytePS as {data.build}. BytePS is real; the machines are network namespaces
of one. A job has stopped when nothing has moved on the workers' links for {limits.still_s:g} s: at the start, before
the first number has gone to all workers and back, or after that. It is late when it is not over after
{limits.whole_s:g} s.

{table(columns, rows)}
{alike}.
{chr(10).join(["", *late, ""]) if late else ""}"""


def run(options: argparse.Namespace) -> int:
    """Make the missing starts, and the page of all. Raises UserError."""
    console = Console()
    reexec_in_user_namespace()
    cluster = ClusterConfig.model_validate({"workers": 2, "servers": 1, "bandwidth": options.rate})
    rate: float = options.rate
    env = provide_build(options.build, options.out, console)
    job, limits = ManyGradientsJob(options.gradients, SIZE_BYTES, ITERATIONS), Limits(options.still, options.limit)
    counts = options.out / f"starts-{options.build}-{job.gradients}-{rate:.0f}.jsonl"
    options.out.mkdir(parents=True, exist_ok=True)
    starts = read_pieces(counts, Start)
    with Testbed([NodeSpec(node, cluster.bandwidth.rate(node)) for node in cluster.nodes]) as testbed:
        for number in range(options.starts):
            for name in POLICIES:
                if sum(start.policy == name for start in starts) > number:
                    continue
                more = {} if name == STOCK else {settings.SCHEDULER: name, settings.FUSION: "0"}
                policy = Contender(name, name, {**env, **more})
                folder, port = options.out / f"{name}-{number}", FIRST_PORT + len(starts) % PORTS
                began = time.monotonic()
                start = counted(
                    name, run_job(testbed, cluster, policy, job, folder, port, limits), time.monotonic() - began
                )
                starts.append(start)
                add_piece(counts, start)
                said = f"{name} {number + 1}: {start.end} {start.stage}, {start.seconds:.0f} s {start.why}"
                console.print(said, markup=False, soft_wrap=True)
    kept.publish(options.results, NAME, Starts, Starts(options.build, job, rate, limits, starts), PAGE, page)
    return 0


def _rate(text: str) -> float:
    try:
        return parse_rate(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def main(arguments: list[str] | None = None) -> int:
    """Run and write; exit status 2 with one line for an error of the user's."""
    parser = page_parser("backlog", __doc__)
    parser.add_argument("--out", type=Path, default=Path("build/backlog"), help="folder for the starts")
    parser.add_argument("--build", choices=BUILDS, default="released")
    parser.add_argument("--gradients", type=int, default=3000)
    parser.add_argument("--rate", type=_rate, default="100mbit", help="of each worker's link")
    parser.add_argument("--starts", type=int, default=5, help="of each policy")
    parser.add_argument("--still", type=float, default=30.0, help="seconds without traffic that are a stop")
    parser.add_argument("--limit", type=float, default=240.0, help="seconds for each start")
    options = parser.parse_args(arguments)
    return exit_status(lambda: run(options))


if __name__ == "__main__":
    sys.exit(main())
