"""View of `prophet plan`: Prophet's plan for a profile on a network, and the iteration times of all policies.

Rule of this file: tables of results that the assembler and the simulator compute.
"""

from __future__ import annotations

from dataclasses import dataclass

from rich.table import Table

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.network import Network
from prophet_scheduler.core.profile import Profile
from prophet_scheduler.core.units import format_rate, format_size
from prophet_scheduler.engines.registry import engines
from prophet_scheduler.engines.spec import EngineSpec
from prophet_scheduler.engines.topology import ALL_REDUCE
from prophet_scheduler.lab.advice import Situation, cell_of, predicted_s
from prophet_scheduler.lab.cluster_config import Bandwidth, ClusterConfig, SimulatorConfig
from prophet_scheduler.lab.contenders import choose_policies
from prophet_scheduler.lab.results import lower_bound
from prophet_scheduler.lab.screen import table_of
from prophet_scheduler.policies import policy_names
from prophet_scheduler.policies.algorithms.assembler import Schedule, assemble, wait_time_s


@dataclass(frozen=True)
class Outlook:
    """Results for a profile on a network: Algorithm 1's blocks, and simulated iteration times in seconds by policy."""

    engine: EngineSpec
    profile: Profile
    network: Network
    schedule: Schedule
    lower_bound_s: float
    iteration_s: dict[str, float]


def outlook(profile: Profile, bits_per_s: float, workers: int, servers: int, engine: str) -> Outlook:
    """Plan and simulate a job, with a limited link for each worker and unlimited links for servers.

    Policies that cannot run such a job are left out. Raises UserError if the cluster is invalid or the engine cannot be
    simulated.
    """
    spec = engines().get(engine)
    if spec is None or not (spec.simulated or spec.topology is ALL_REDUCE):
        raise UserError(f"--engine is {engine!r}; it must be ddp or byteps")
    if spec.topology is ALL_REDUCE and workers < 2:
        raise UserError(f"--workers is {workers}; {spec.words} needs 2 or more")
    costs = SimulatorConfig()
    network = Network(bits_per_s / 8, costs.overhead_s, 2 * costs.latency_s)
    cluster = ClusterConfig.model_construct(workers=workers, servers=servers, bandwidth=Bandwidth(bits_per_s))
    names = [*(variant.name for variant in spec.variants), *(policy_names() if spec.scheduled else ())]
    jobs = [Situation(cell_of(profile, each, cluster, costs), each) for each in choose_policies((), names)]
    bound = lower_bound(jobs[0].cell)
    assert bound is not None
    times = {job.contender.name: predicted_s(job) for job in jobs}
    return Outlook(spec, profile, network, assemble(profile, network), bound, times)


def block_table(plan: Outlook) -> Table:
    """Return a table of Algorithm 1's blocks with their times and gradients."""
    gradients = plan.profile.gradients
    wait_s = wait_time_s(plan.profile, plan.network, plan.schedule.start_s)
    rows = [
        (
            str(number),
            f"{block.start_s * 1e3:.1f}",
            f"{block.end_s * 1e3:.1f}",
            _ranges(block.gradients),
            format_size(sum(gradients[index].size_bytes for index in block.gradients)),
            "backward" if block.in_backward else "forward",
        )
        for number, block in enumerate(plan.schedule.blocks)
    ]
    return table_of(
        ("block", "from ms", "to ms", "gradients", "bytes", "pass"),
        rows,
        f"{plan.profile.name} at {format_rate(plan.network.bandwidth * 8)}: Algorithm 1's blocks",
        f"backward ends at {plan.profile.backward_s * 1e3:.0f} ms; forward then waits {wait_s * 1e3:.0f} ms",
        folds=3,
    )


def _ranges(indices: tuple[int, ...]) -> str:
    """Return indices, in any order, as ranges such as `0-3, 7`."""
    parts: list[list[int]] = []
    for index in sorted(indices):
        if parts and index == parts[-1][-1] + 1:
            parts[-1].append(index)
        else:
            parts.append([index])
    words = [str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts]
    return ", ".join(words if len(words) <= 3 else [*words[:2], f"+{len(words) - 2} more"])


def policy_table(plan: Outlook) -> Table:
    """Return a table of all policies' simulated iteration times, fastest first."""
    stock_s = plan.iteration_s[plan.engine.stock]
    rows = [
        (name, f"{time_s:.3f}", f"{stock_s / time_s:.2f}", f"{time_s / plan.lower_bound_s:.2f}")
        for name, time_s in sorted(plan.iteration_s.items(), key=lambda item: item[1])
    ]
    headings = ("policy", "iteration s", f"x {plan.engine.stock}", "x bound")
    return table_of(headings, rows, f"{plan.engine.words}, simulated (lower bound {plan.lower_bound_s:.3f} s)")
