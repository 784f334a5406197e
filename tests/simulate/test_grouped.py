"""Policies that group learn what they group by from a run of the same cluster, and from nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from prophet_scheduler.core._native import Exchange
from prophet_scheduler.core.profile import Profile
from prophet_scheduler.lab.results import emulation
from prophet_scheduler.policies import get_policy
from prophet_scheduler.policies.algorithms.collective_groups import LEARNING_ITERATIONS
from prophet_scheduler.simulate import Cluster, Costs, Options, simulate
from prophet_scheduler.simulate.grouped import grouped, learn
from support.configs import REPLAY, changed, loaded
from support.profiles import resnet50

PROFILE = resnet50(25_600_000)
RATE = 31.25e6
OPTIONS = Options(iterations=5)


def ring() -> Cluster:
    """A collective's channel, as lab/simulated.py makes one."""
    return Cluster(2, 0, {"worker0": ((0.0, RATE),)}, Costs(0.002, 0.001), Exchange.COLLECTIVE)


def servers() -> Cluster:
    return Cluster(2, 1, {f"worker{i}": ((0.0, RATE),) for i in range(2)}, Costs(1e-4, 1.4e-4))


def groups_of(profile: Profile, cluster: Cluster, name: str, options: Options = OPTIONS) -> list[tuple[int, ...]]:
    made = grouped(profile, cluster, get_policy(name), options)
    assert made is not None
    return list(made[0].members)


@pytest.mark.parametrize("name", ["mg-wfbp", "ddp", "horovod", "pace", "caramel"])
def test_a_collectives_line_and_the_times_are_measured(name: str) -> None:
    profile, network, jitter_s = learn(PROFILE, ring(), get_policy(name), OPTIONS)
    assert network is not None
    assert network.bandwidth == pytest.approx(RATE, rel=1e-3)
    assert network.overhead_s == pytest.approx(0.003, rel=1e-3), "one at a time pays for the latency"
    assert jitter_s == pytest.approx(0.0, abs=1e-9)
    for true, seen in zip(PROFILE.gradients, profile.gradients, strict=True):
        assert seen.size_bytes == true.size_bytes
        assert seen.generation_s - profile.backward_s == pytest.approx(true.generation_s - PROFILE.backward_s)
        assert seen.forward_s == pytest.approx(true.forward_s), "though the job waits for its network"


def test_it_is_the_cluster_that_is_learned_from_and_not_the_profile() -> None:
    """Worker 0, whose events count, takes an eighth of the time: its steps are nearer than Horovod's cycles."""
    quick = replace(OPTIONS, compute_scale=[[0.125] * LEARNING_ITERATIONS] * 2)
    profile, _, _ = learn(PROFILE, servers(), get_policy("horovod"), quick)
    assert profile.forward_s == pytest.approx(PROFILE.forward_s / 8)
    assert profile.backward_s == pytest.approx(PROFILE.backward_s / 8)
    as_told = [tuple(sorted(group)) for group in plan_groups("horovod")]
    assert groups_of(PROFILE, servers(), "horovod") == sorted(as_told)
    slower = replace(PROFILE, gradients=tuple(replace(g, generation_s=g.generation_s / 64) for g in PROFILE.gradients))
    assert len(groups_of(slower, servers(), "horovod")) < len(as_told), "several steps in a cycle"
    scaled = replace(OPTIONS, compute_scale=[[1 / 64] * LEARNING_ITERATIONS] * 2)
    assert groups_of(PROFILE, servers(), "horovod", scaled) == groups_of(slower, servers(), "horovod")


def plan_groups(name: str) -> list[list[int]]:
    members: dict[int, list[int]] = {}
    for gradient, group in get_policy(name).plan(PROFILE, None).push.groups.items():
        members.setdefault(group, []).append(gradient)
    return list(members.values())


def test_what_was_learned_is_run_with_its_groups_as_tensors() -> None:
    made = grouped(PROFILE, ring(), get_policy("caramel"), OPTIONS)
    assert made is not None
    job, options = made
    assert 1 < len(job.members) < 161
    assert options.plan is not None and options.plan.policy == "caramel" and not options.plan.push.groups
    run = simulate(job, ring(), None, options)
    assert run.marks.shape == (2, OPTIONS.iterations)


@pytest.mark.parametrize("name", ["fifo", "p3", "tictac", "prophet", "prophet-paper"])
def test_the_others_learn_while_they_run(name: str) -> None:
    assert grouped(PROFILE, servers(), get_policy(name), OPTIONS) is None


def test_a_result_says_whose_forward_times_no_event_tells(tmp_path: Path) -> None:
    (cell,) = loaded(
        changed({**REPLAY, "simulator": {}}, "policies", ["stock", "ddp", "pace", "caramel"]), tmp_path
    ).cells
    said = emulation(cell, simulated=True)
    assert said.endswith("; forward times of pace, caramel from a trace of operations")
    (cell,) = loaded(changed({**REPLAY, "simulator": {}}, "policies", ["stock", "ddp", "prophet"]), tmp_path).cells
    assert "trace" not in emulation(cell, simulated=True)
