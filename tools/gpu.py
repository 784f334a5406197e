"""Jobs on a GPU, with Prophet and without: iteration times and weights, on BytePS and on DDP over NCCL.

Rule of this file: the jobs, and the data kept of each run. gpu_job.py is the worker. A finished run is not repeated, so
this can be interrupted.

Two workers share one GPU; each has its own network namespace and link. NCCL refuses two ranks on one GPU of one host,
so each gets another host's identity (NCCL_HOSTID), and they communicate over sockets, like two machines with a GPU
each. BytePS must be a CUDA build (docs/engine.md).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.settings import DDP_NCCL
from prophet_scheduler.engines.registry import engines, scheduled_engine
from prophet_scheduler.engines.spec import STOCK, RunNetwork, is_worker
from prophet_scheduler.lab.cluster_config import ClusterConfig
from prophet_scheduler.lab.contenders import Contender
from prophet_scheduler.lab.launchers import environment, nodes_of, server_command
from prophet_scheduler.lab.runner import POLL_S
from prophet_scheduler.lab.session import testbed_of
from prophet_scheduler.lab.testbed import reexec_in_user_namespace
from tools import kept
from tools.kept import resumed

NAME = "gpu"
PROPHET = "prophet"
WORKERS = ("worker0", "worker1")
SCHEDULED, REDUCING = scheduled_engine(), engines()["ddp"]
BASES: Mapping[str, tuple[str, str]] = {
    SCHEDULED.name: (STOCK, PROPHET),
    REDUCING.name: (REDUCING.stock, REDUCING.called_here(PROPHET)),
}
"""Policies without and with Prophet, by engine. Those named after gloo use NCCL here, since the script asks for it."""
FIRST_PORT = 24900
LIMIT_S = 400.0
"""Maximum seconds of a run."""
NCCL = {"NCCL_SHM_DISABLE": "1", "NCCL_P2P_DISABLE": "1", "NCCL_IB_DISABLE": "1"}
"""Settings that limit NCCL to what it can use between two machines on a network."""


@dataclass(frozen=True)
class GpuJob:
    """One job. `how` are options of gpu_job.py; `bandwidth` is that of each worker's link, or `none`."""

    engine: str
    model: str
    bandwidth: str
    iterations: int
    how: tuple[str, ...] = ()

    @property
    def name(self) -> str:
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
    """One worker's run: bytes of its gradients, seconds of each iteration, a digest of its weights and all values it
    saw, and its peak memory on the device.
    """

    job: GpuJob
    policy: str
    gradient_bytes: int
    seconds: list[float]
    digest: str
    device_bytes: int


def command_of(job: GpuJob, folder: Path) -> list[str]:
    script, place = Path(__file__).with_name("gpu_job.py"), folder.resolve()
    return [str(script), job.engine, job.model, str(job.iterations), str(place), *job.how]


def settings_of(node: str, interface: str) -> dict[str, str]:
    """Return the environment that lets two workers share a GPU and makes runs bit-for-bit reproducible."""
    same = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    return same | NCCL | {"NCCL_HOSTID": node, "NCCL_SOCKET_IFNAME": interface, DDP_NCCL: "1"}


def run_of(job: GpuJob, policy: str, out: Path, port: int) -> GpuRun:
    """Make one run. Raises UserError if it fails or hangs."""
    cluster = ClusterConfig.model_validate({"workers": 2, "servers": 1, "bandwidth": job.bandwidth})
    folder, contender = out / f"{job.name}-{policy}", Contender(policy, policy)
    folder.mkdir(parents=True, exist_ok=True)
    processes = {}
    with testbed_of(cluster) as testbed, tempfile.TemporaryDirectory(prefix="prophet-") as sockets:
        addresses = {node: testbed.address(node) for node in cluster.nodes}
        for node in nodes_of(contender.engine, cluster):
            own, interface = Path(sockets, node), testbed.interface(node)
            own.mkdir()
            network = RunNetwork(cluster.workers, cluster.servers, addresses, interface, port, str(own))
            env = {**environment(contender, node, network, os.environ), **settings_of(node, interface)}
            worker = [sys.executable, *command_of(job, folder)]
            argv = worker if is_worker(node) else server_command(contender.engine, node)
            processes[node] = testbed.popen(node, argv, env=env, log=folder / f"{node}.log", cwd=own)
        wrong = failure_of(processes)
    if wrong:
        raise UserError(f"{job.name} {policy}: {wrong}; {folder} has the logs; run it again, the others are kept")
    result = json.loads((folder / f"{WORKERS[0]}.json").read_text())
    return GpuRun(job, policy, result["gradient_bytes"], result["seconds"], result["digest"], result["device_bytes"])


def failure_of(processes: Mapping[str, subprocess.Popen[bytes]], limit_s: float = LIMIT_S) -> str:
    """Wait until the workers have finished, and return ""; or else return what went wrong, in a few words."""
    ends_at = time.monotonic() + limit_s
    while any(processes[worker].poll() is None for worker in WORKERS):
        if time.monotonic() >= ends_at:
            return f"not over after {limit_s:g} s"
        if any(process.poll() for process in processes.values()):
            break
        time.sleep(POLL_S)
    failed = [f"{node} ended with status {code}" for node, process in processes.items() if (code := process.poll())]
    return ", ".join(failed)


def measure(out: Path, results: Path, *, engine: str = "") -> None:
    """Make missing runs of one engine or both, and keep them with those kept of the other. Raises UserError."""
    if engine not in ("", *BASES):
        raise UserError(f"engine={engine}: its engines are {', '.join(BASES)}")
    if not torch.cuda.is_available():
        raise UserError("there is no GPU here that PyTorch can use")
    reexec_in_user_namespace()
    chosen = [(job, policy) for job in JOBS for policy in BASES[job.engine] if engine in ("", job.engine)]

    def run(number: int, key: tuple[GpuJob, str]) -> GpuRun:
        return run_of(*key, out, FIRST_PORT + number)

    runs = resumed(out / "runs.jsonl", GpuRun, chosen, run, lambda run: (run.job, run.policy))
    where = replace(kept.here(), processor=torch.cuda.get_device_name(0))
    kept.keep(results, NAME, list[GpuRun], beside_others(runs, results), where)


def beside_others(runs: Sequence[GpuRun], results: Path) -> list[GpuRun]:
    """Return the runs, with the kept runs of other engines."""
    stored, engines_run = kept.kept(results, NAME, list[GpuRun]), {run.job.engine for run in runs}
    others = [run for run in (stored.data if stored else ()) if run.job.engine not in engines_run]
    return sorted([*runs, *others], key=lambda run: list(BASES).index(run.job.engine))
