"""Jobs on a GPU, with Prophet and without: iteration times and weights, on BytePS and on DDP over NCCL.

Rule of this file: which jobs, what is kept of a run, and the page made of it, docs/results/gpu.md. What a worker does
is gpu_job.py's. A run that is there already is not made again, so it can be interrupted.

Two workers share one GPU; each is in a network namespace of its own, with a link of its own. NCCL refuses two ranks on
one GPU of one host, so each is told that it is another host (NCCL_HOSTID), and they talk over sockets, as two machines
with a GPU each. BytePS must be a CUDA build (docs/engine.md).
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from pydantic import TypeAdapter
from rich.console import Console

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.files import write_whole
from prophet_scheduler.core.settings import DDP_NCCL
from prophet_scheduler.engines.registry import engines, scheduled_engine
from prophet_scheduler.engines.spec import STOCK
from prophet_scheduler.lab.cluster_config import ClusterConfig
from prophet_scheduler.lab.contenders import Contender
from prophet_scheduler.lab.iterations import MEANS, Times, rests_from, time_columns, times_of
from prophet_scheduler.lab.records import read
from prophet_scheduler.lab.testbed import NodeSpec, Testbed, reexec_in_user_namespace
from tools import kept
from tools.builds import Limits, run_job
from tools.command_line import exit_status, page_parser
from tools.markdown import table
from tools.provenance import Provenance, here

PAGE = "gpu.md"
NAME = "gpu"
PROPHET = "prophet"
WORKERS = ("worker0", "worker1")
SCHEDULED, REDUCING = scheduled_engine(), engines()["ddp"]
BASES: Mapping[str, tuple[str, str]] = {
    SCHEDULED.name: (STOCK, PROPHET),
    REDUCING.name: (REDUCING.variants[0].name, next(one.name for one in REDUCING.variants if one.policy == PROPHET)),
}
"""Policies without and with Prophet, by engine. Those named after gloo use NCCL here, since the script asks for it."""
ENGINES = {SCHEDULED.name: SCHEDULED.words, REDUCING.name: "DDP, NCCL"}
MODELS = {"resnet50": "ResNet-50, SGD", "transformer": "a transformer, AdamW", "small": "a small one"}
FIRST_PORT = 24900
NCCL = {"NCCL_SHM_DISABLE": "1", "NCCL_P2P_DISABLE": "1", "NCCL_IB_DISABLE": "1"}
"""Settings that leave NCCL nothing that two machines with a network between them would not have."""


@dataclass(frozen=True)
class GpuJob:
    """`how` are the words that gpu_job.py knows; `bandwidth` is that of each worker's link, or `none`."""

    engine: str
    model: str
    bandwidth: str
    iterations: int
    how: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Name of its files."""
        return "-".join((self.engine, self.model, self.bandwidth, *self.how))


JOBS = (
    GpuJob(SCHEDULED.name, "resnet50", "2.5gbit", 100),
    GpuJob(SCHEDULED.name, "resnet50", "2.5gbit", 60, ("half",)),
    GpuJob(SCHEDULED.name, "transformer", "2.5gbit", 50),
    GpuJob(SCHEDULED.name, "transformer", "2.5gbit", 25, ("clips",)),
    GpuJob(SCHEDULED.name, "resnet50", "none", 100),
    GpuJob(SCHEDULED.name, "transformer", "none", 20, ("looks",)),
    GpuJob(REDUCING.name, "resnet50", "2.5gbit", 100),
    GpuJob(REDUCING.name, "resnet50", "2.5gbit", 60, ("half",)),
    GpuJob(REDUCING.name, "resnet50", "1gbit", 50),
    GpuJob(REDUCING.name, "transformer", "2.5gbit", 50),
    GpuJob(REDUCING.name, "transformer", "2.5gbit", 40, ("clips",)),
    GpuJob(REDUCING.name, "resnet50", "none", 150),
    GpuJob(REDUCING.name, "transformer", "none", 24, ("looks",)),
)


@dataclass(frozen=True)
class GpuRun:
    """One worker's run, of `gradient_bytes`: seconds of all iterations, and a digest of its weights and all it saw."""

    job: GpuJob
    policy: str
    gradient_bytes: int
    seconds: list[float]
    digest: str
    device_bytes: int

    @property
    def times(self) -> Times:
        """Times that count; the last change of blocks is not on record."""
        return times_of([(self.seconds, rests_from(list(itertools.accumulate(self.seconds)), None))])


@dataclass(frozen=True)
class OnFirstGpu:
    """Program of a worker, as a Script of builds.py."""

    job: GpuJob
    folder: Path
    interface: str

    @property
    def command(self) -> Sequence[str]:
        """Path of the script and its arguments."""
        job = self.job
        script = str(Path(__file__).with_name("gpu_job.py"))
        return [script, job.engine, job.model, str(job.iterations), str(self.folder.resolve()), *job.how]

    def settings(self, node: str) -> Mapping[str, str]:
        """Return the environment that lets two workers share a GPU, and gives the same bits in each run."""
        same = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
        return same | NCCL | {"NCCL_HOSTID": node, "NCCL_SOCKET_IFNAME": self.interface, DDP_NCCL: "1"}


def run_of(job: GpuJob, policy: str, out: Path, port: int) -> GpuRun:
    """Make one run. Raises UserError if it failed or stood still."""
    cluster = ClusterConfig.model_validate({"workers": 2, "servers": 1, "bandwidth": job.bandwidth})
    folder = out / f"{job.name}-{policy}"
    with Testbed([NodeSpec(node, cluster.bandwidth.rate(node)) for node in cluster.nodes]) as testbed:
        script = OnFirstGpu(job, folder, testbed.interface(WORKERS[0]))
        ended = run_job(testbed, cluster, Contender(policy, policy), script, folder, port, Limits(60.0, 400.0))
    if ended.end != "trained":
        raise UserError(f"{job.name} {policy}: {ended.why}; {folder} has the logs; run it again, the others are kept")
    result = json.loads((folder / f"{WORKERS[0]}.json").read_text())
    return GpuRun(job, policy, result["gradient_bytes"], result["seconds"], result["digest"], result["device_bytes"])


def means(run: GpuRun) -> tuple[float, float]:
    """Return the seconds of an iteration, and of one at rest."""
    return run.times.headline, run.times.rest


def page(results: Path) -> str:
    """Return the page, made from the kept data."""
    seen = kept.note(results, "gpu-seen")
    return kept.joined("# On a GPU", kept.section(results, NAME, list[GpuRun], "python -m tools.gpu", text), seen)


def text(runs: Sequence[GpuRun], measured: Provenance) -> str:
    """Return the measurements as Markdown."""
    pairs = []
    for job in dict.fromkeys(run.job for run in runs):
        of = {run.policy: run for run in runs if run.job == job}
        if all(policy in of for policy in BASES[job.engine]):
            pairs.append(tuple(of[policy] for policy in BASES[job.engine]))
    headings, times = time_columns([run.times for pair in pairs for run in pair])
    rows = []
    for place, (without, under) in enumerate(pairs):
        job, alike = without.job, len(without.seconds) == len(under.seconds)
        what = f"{MODELS[job.model]}{''.join(f', {word}' for word in job.how)}"
        about = (ENGINES[job.engine], what, f"{without.gradient_bytes / 1e6:.0f}", job.bandwidth)
        ratios = [f"{one / other:.2f}" for one, other in zip(means(without), means(under), strict=True)]
        same = ("yes" if without.digest == under.digest else "**no**") if alike else "-"
        rows.append((*about, "without", *times[2 * place], "", f"{without.device_bytes / 1e6:,.0f}", ""))
        rows.append(
            (*about, "with", *times[2 * place + 1], ", ".join(ratios), f"{under.device_bytes / 1e6:,.0f}", same)
        )
    columns = (
        *("engine", "what is trained", "MB of gradients", "link", "Prophet", *headings),
        *("times as fast, and at rest", "MB on the GPU", "the same weights"),
    )
    return f"""Made by `python -m tools.gpu`, where PyTorch and [BytePS](../engine.md#a-cuda-build) are built for CUDA.
{measured.line()} {MEANS}

Two workers train on **one GPU that they share**, each in a network namespace of its own. Engines, computing and
transfers are real; what is emulated is that there are two machines, and the links. NCCL is told that the two ranks are
on two hosts, and goes over sockets. One run each. *half*:
gradients travel in half precision; *clips*: the norm of all gradients is limited; *looks*: two backward passes make a
gradient, the device is waited for in each iteration, and a second stream looks at gradients and weights. Weights are
compared bit for bit after as many iterations, with all losses and whatever was looked at; `-` where the two runs were
not of the same length. MB on the GPU are the most that PyTorch has handed out to one worker, without Prophet and with
it.

{table(columns, rows)}"""


def run(out: Path, results: Path, jobs: Sequence[GpuJob]) -> int:
    """Make the runs that are not there yet, and the page of all. Raises UserError."""
    console = Console()
    if not torch.cuda.is_available():
        raise UserError("there is no GPU here that PyTorch can use")
    reexec_in_user_namespace()
    out.mkdir(parents=True, exist_ok=True)
    runs: list[GpuRun] = []
    for job in jobs:
        for policy in BASES[job.engine]:
            path = out / f"{job.name}-{policy}.json"
            if not path.exists():
                console.print(f"{job.name} {policy}: {job.iterations} iterations")
                ran = run_of(job, policy, out, FIRST_PORT + len(runs))
                write_whole(json.dumps(asdict(ran)), path)
            runs.append(read(path, TypeAdapter(GpuRun).validate_python, "a run"))
    kept.keep(results, NAME, list[GpuRun], runs, replace(here(), processor=torch.cuda.get_device_name(0)))
    kept.write_page(results, PAGE, page)
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Run and write; exit status 2 with one line for an error of the user's."""
    parser = page_parser("gpu", __doc__)
    parser.add_argument("--out", type=Path, default=Path("build/gpu"), help="folder for the runs")
    parser.add_argument("--engine", choices=BASES, help="only jobs of this one; both where left out")
    options = parser.parse_args(arguments)
    jobs = [job for job in JOBS if options.engine in (None, job.engine)]
    return exit_status(lambda: run(options.out, options.results, jobs))


if __name__ == "__main__":
    sys.exit(main())
