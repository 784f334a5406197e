"""Policies that form groups: they learn from a run without groups, and form their groups before the real run.

Rule of this file: the learning run, and what is derived from it. run.py performs all runs.

In a job the front end fuses gradients only once, so such a policy needs a profile before it starts. Here the same
cluster first runs the same job under the plan of the policy without any knowledge: mostly arrival order, one at a time.
Generation times and E(s) are estimated from that run's events, as for policies that learn while they run. With a
collective, events of one lane are enough. Forward times of layers cannot be derived from events, in which waiting for
the network looks like computing. PACE and Caramel take them from the framework's trace of operations, so here they come
from the run's trace (Definition.traced).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from prophet_scheduler.core._native import Exchange
from prophet_scheduler.core.network import Network
from prophet_scheduler.core.policy import CuttingPolicy, Policy
from prophet_scheduler.core.profile import Profile
from prophet_scheduler.learn.bandwidth import BandwidthMonitor
from prophet_scheduler.learn.profiler import WARM_UP, JobProfiler
from prophet_scheduler.policies.algorithms.collective_groups import LEARNING_ITERATIONS
from prophet_scheduler.simulate.cluster import Cluster
from prophet_scheduler.simulate.job import Job, alone, fused_by_plan, job_of_profile
from prophet_scheduler.simulate.run import Options, SimulatedRun, simulate

WHOLE = 1 << 31
"""Partition size that cuts no tensor."""


def grouped(
    profile: Profile, cluster: Cluster, policy: Policy, options: Options, *, barrier: bool = False
) -> tuple[Job, Options] | None:
    """Return the job with the policy's groups as tensors, and options with their plan; None if it forms no groups.

    With collectives, only the policy cuts a group. With a `barrier`, forward begins when all gradients are back
    (job_of_profile). Raises UserError if the simulated job cannot make progress.
    """
    if not policy.plan(profile, Network(1e9, 1e-3)).push.groups:
        return None
    collective = cluster.exchange is Exchange.COLLECTIVE
    options = replace(options, partition_bytes=WHOLE) if collective else options
    learned, network, jitter_s = learn(profile, cluster, policy, options)
    plan = policy.plan(learned, network, jitter_s=jitter_s)
    if not plan.push.groups:
        return None
    members, tensor_plan = fused_by_plan(profile, plan)
    parts = {}
    if collective and network is not None and isinstance(policy, CuttingPolicy):
        group_of, ids = plan.push.groups, profile.gradient_ids
        places = {group_of.get(ids[bucket[0]]): place for place, bucket in enumerate(members)}
        parts = {places[group]: sizes for group, sizes in policy.segments(learned, network).items()}
    return job_of_profile(profile, members, barrier=barrier, parts=parts), replace(options, plan=tensor_plan)


def learn(
    profile: Profile, cluster: Cluster, policy: Policy, options: Options
) -> tuple[Profile, Network | None, float]:
    """Return (profile, network, jitter in seconds) from a few iterations with ungrouped gradients and no knowledge.

    Raises UserError if the simulated job cannot make progress.
    """
    first = replace(options, plan=policy.plan(None, None), iterations=LEARNING_ITERATIONS)
    run = simulate(job_of_profile(profile, alone(profile)), cluster, None, first)
    profiler, monitor = JobProfiler(), BandwidthMonitor()
    profiler.observe(run.events)
    monitor.observe(run.events)
    assert profiler.profile is not None  # LEARNING_ITERATIONS are enough
    network = monitor.network.one_at_a_time if monitor.network is not None else None
    return with_forward(profiler.profile, run), network, profiler.jitter_s


def with_forward(profile: Profile, run: SimulatedRun) -> Profile:
    """Return `profile` with each layer's median forward time in the trace of a run with ungrouped gradients."""
    trace = run.computing[run.computing["iteration"] >= WARM_UP]
    seconds = trace["finished_s"] - trace["started_s"]
    gradients = []
    for tensor, gradient in zip(profile.gradient_ids, profile.gradients, strict=True):
        # job_of_profile numbers forward's operations by layer. Operations that take no time are not in the trace.
        layer = seconds[trace["operation"] == tensor]
        gradients.append(replace(gradient, forward_s=float(np.median(layer)) if len(layer) else 0.0))
    return replace(profile, gradients=tuple(gradients))
