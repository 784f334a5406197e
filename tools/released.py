"""Jobs with many gradients on either build of BytePS: the installed one, with corrections, and the released one.

Rule of this file: where the builds are, which jobs run on them, and what is counted. `backlog` counts the outcomes of
jobs whose workers have more messages to send than a socket of the released ps-lite can take. `memory` samples the
memory per message: a push or a pull of one partition. Finished runs are not repeated, whatever their outcome, so both
can be interrupted.
"""

from __future__ import annotations

import itertools
import tempfile
import time
import zipfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console

from prophet_byteps.build.build import provide
from prophet_byteps.build.recipe import UNCORRECTED, key_of
from prophet_byteps.build.store import Store
from prophet_byteps.build.toolchain import find_toolchain
from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.settings import DEFAULT_PARTITION_BYTES, FUSION, SCHEDULER
from prophet_scheduler.core.units import parse_rate
from prophet_scheduler.engines.spec import STOCK
from prophet_scheduler.lab.cluster_config import ClusterConfig
from prophet_scheduler.lab.contenders import Contender
from prophet_scheduler.lab.session import testbed_of
from prophet_scheduler.lab.testbed import Testbed, reexec_in_user_namespace
from tools.jobs import Ended, Limits, Look, Marks, Process, run_job
from tools.kept import resumed

BUILDS = ("corrected", "released")
BACKLOG_POLICIES = (STOCK, "fifo", "p3", "prophet")
BACKLOG_RATE = "100mbit"
"""Rate of the workers' links."""
BACKLOG_STARTS = 5
BACKLOG_PORT = 24700
MEMORY_POLICIES: Mapping[str, int] = {STOCK: 4_096_000, "prophet": DEFAULT_PARTITION_BYTES}
"""Policies to compare, with the bytes of a partition."""
MEMORY_PORT = 24600
ROLES = {"worker": "worker0", "server": "server0"}
MOST_BYTES = 4e9
"""Resident bytes of a process above which a run is ended."""


def ended(
    testbed: Testbed,
    cluster: ClusterConfig,
    policy: str,
    env: Mapping[str, str],
    job: Mapping[str, int],
    folder: Path,
    port: int,
    limits: Limits,
    look: Look = lambda marks, processes: None,
) -> Ended:
    """Run a job with `gradients` of `size_bytes` each for `iterations`, sent one by one, on the build of `env`."""
    script = [str(Path(__file__).with_name("many_gradients.py")), *map(str, job.values())]
    own = {} if policy == STOCK else {SCHEDULER: policy, FUSION: "0"}
    return run_job(testbed, cluster, Contender(policy, policy, {**env, **own}), script, folder, port, limits, look)


def provide_build(name: str, out: Path) -> dict[str, str]:
    """Return the environment that makes a job use the build `name`. Build the released one, and unpack it under `out`.

    Raises UserError if it cannot be built.
    """
    if name == "corrected":
        return {}
    toolchain = find_toolchain()
    folder = out / f"byteps-released-{key_of(toolchain, UNCORRECTED)}"
    if not folder.is_dir():
        wheel = provide(Store.of_user(), toolchain, Console(), UNCORRECTED)
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=out) as half:
            zipfile.ZipFile(wheel).extractall(Path(half, "done"))
            Path(half, "done").rename(folder)
    return {"PYTHONPATH": str(folder.resolve())}


def cluster_of(rate: str) -> ClusterConfig:
    return ClusterConfig.model_validate({"workers": 2, "servers": 1, "bandwidth": rate})


def backlog(out: Path, results: Path) -> dict[str, Any]:
    """Make missing starts of each policy on the released build, interleaved. The rate is kept in bits per second.

    Raises UserError.
    """
    reexec_in_user_namespace()
    cluster, env, limits = cluster_of(BACKLOG_RATE), provide_build("released", out), Limits()
    job = {"gradients": 3000, "size_bytes": 4_096, "iterations": 3}
    with testbed_of(cluster) as testbed:

        def start(number: int, policy: str) -> dict[str, Any]:
            began = time.monotonic()
            done = ended(testbed, cluster, policy, env, job, out / f"{policy}-{number}", BACKLOG_PORT + number, limits)
            took = {"seconds": time.monotonic() - began, "why": done.why}
            return {"policy": policy, "end": done.end, "stage": done.marks.stage, **asdict(done.marks), **took}

        wanted = BACKLOG_POLICIES * BACKLOG_STARTS
        made = resumed(out / "starts.jsonl", dict[str, Any], wanted, start, lambda each: each["policy"])
    return {"build": "released", "job": job, "rate": parse_rate(BACKLOG_RATE), "limits": limits, "starts": made}


@dataclass
class Samples:
    """One run: `resident[role]` has the resident bytes at each of `iterations`. `why` is one line if it ended early."""

    build: str
    policy: str
    messages: int
    """Messages of one worker in an iteration; a server has all workers' messages."""
    iterations: list[int] = field(default_factory=list)
    resident: dict[str, list[int]] = field(default_factory=lambda: {role: [] for role in ROLES})
    why: str = ""

    def look(self, marks: Marks, processes: Mapping[str, Process]) -> str | None:
        """Take a sample if another iteration is over. Return a reason to end the run if memory exceeds MOST_BYTES."""
        if marks.iteration > (self.iterations[-1] if self.iterations else 0):
            try:
                memory = {role: psutil.Process(processes[node].pid).memory_info().rss for role, node in ROLES.items()}
            except psutil.Error:  # the process has just exited
                return None
            self.iterations.append(marks.iteration)
            for role, resident in memory.items():
                self.resident[role].append(resident)
            if max(memory.values()) > MOST_BYTES:
                return f"ended at {MOST_BYTES / 1e9:g} GB"
        return None


def memory(out: Path, results: Path, *, seconds: float = 200.0) -> list[Samples]:
    """Make missing runs, without fusion, each for `seconds` at most. Raises UserError if one fails or hangs.

    A run that needs too much time or memory is ended, and its samples so far are kept.
    """
    reexec_in_user_namespace()
    cluster, job = cluster_of("none"), {"gradients": 4, "size_bytes": 262_144, "iterations": 10_000}
    with testbed_of(cluster) as testbed:

        def run(number: int, key: tuple[str, str]) -> Samples:
            build, policy = key
            samples = Samples(build, policy, 2 * job["gradients"] * -(-job["size_bytes"] // MEMORY_POLICIES[policy]))
            how = provide_build(build, out), job, out / f"{build}-{policy}", MEMORY_PORT + number
            done = ended(testbed, cluster, policy, *how, Limits(whole_s=seconds), samples.look)
            if done.end in ("failed", "stopped"):
                raise UserError(f"{build} {policy}: {done.why} ({done.marks.stage}); run it again")
            samples.why = done.why
            return samples

        wanted = itertools.product(BUILDS, MEMORY_POLICIES)
        return resumed(out / "runs.jsonl", Samples, wanted, run, lambda each: (each.build, each.policy))
