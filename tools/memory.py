"""Memory of a message: resident bytes of worker and server over many iterations, on both builds of BytePS.

Rule of this file: which jobs are run, and what is sampled. A message is a push or a pull of one partition. A run that
is there already is not made again, so it can be interrupted. One that needs too much time or memory is ended, and is
kept as far as it came.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import psutil

from prophet_scheduler.core import settings
from prophet_scheduler.core.errors import UserError
from prophet_scheduler.engines.spec import STOCK
from prophet_scheduler.lab.cluster_config import ClusterConfig
from prophet_scheduler.lab.session import testbed_of
from prophet_scheduler.lab.testbed import reexec_in_user_namespace
from tools.builds import BUILDS, Limits, ManyGradientsJob, Marks, Process, provide_build, run_job, unfused
from tools.kept import resumed

JOB = ManyGradientsJob(gradients=4, size_bytes=262_144, iterations=10_000)
POLICIES: Mapping[str, int] = {STOCK: 4_096_000, "prophet": settings.DEFAULT_PARTITION_BYTES}
"""Policies that are compared, with the bytes of a partition."""
CLUSTER = ClusterConfig.model_validate({"workers": 2, "servers": 1, "bandwidth": "none"})
ROLES = {"worker": "worker0", "server": "server0"}
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


def messages(job: ManyGradientsJob, partition_bytes: int) -> int:
    """Return the pushes and pulls of one worker in an iteration of `job`, with nothing fused."""
    return 2 * job.gradients * math.ceil(job.size_bytes / partition_bytes)


def measure(out: Path, results: Path, *, seconds: float = 200.0) -> list[Samples]:
    """Make the missing runs, each for `seconds` at most. Raises UserError if one failed or stood still."""
    reexec_in_user_namespace()
    with testbed_of(CLUSTER) as testbed:

        def run(number: int, build: str, policy: str) -> Samples:
            env = provide_build(build, out)
            samples = Samples(build, policy, messages(JOB, POLICIES[policy]))
            limits, folder, port = Limits(whole_s=seconds), out / f"{build}-{policy}", FIRST_PORT + number
            ended = run_job(testbed, CLUSTER, unfused(policy, env), JOB.command(), folder, port, limits, samples.look)
            if ended.end in ("failed", "stopped"):
                raise UserError(f"{build} {policy}: {ended.why} ({ended.marks.stage}); run it again")
            samples.why = ended.why
            return samples

        wanted = enumerate((build, policy) for build in BUILDS for policy in POLICIES)
        works = [(key, partial(run, number, *key)) for number, key in wanted]
        return resumed(out / "runs.jsonl", Samples, works, lambda each: (each.build, each.policy))
