"""Decisions of the same mind on both engines, for jobs on a virtual clock, to the last digit.

A job's events follow from what was decided before, so one decision that differs changes all that come later.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

from prophet_byteps.agent import Agent
from prophet_scheduler.core.arena import at_pace
from prophet_scheduler.core.cut import Cut
from prophet_scheduler.core.network import Network, Probe
from prophet_scheduler.core.plan_codec import encode_plan
from prophet_scheduler.core.profile import GradientProfile, Profile
from prophet_scheduler.core.settings import Settings
from prophet_scheduler.core.status import ArmStatus
from prophet_scheduler.policies import get_policy
from support.golden import Golden, Json
from support.profiles import resnet50
from support.virtual_byteps import VirtualBytePS, VirtualHook
from support.virtual_ddp import (
    NETWORK,
    PROFILE,
    TUTORIAL,
    Bursts,
    Clipping,
    Distant,
    Job,
    Restless,
    module_agent,
    trained,
    trained_with_turns,
    warm_start,
)


def digest(content: object) -> str:
    """Return a few letters that tell values apart."""
    return hashlib.sha256(content if isinstance(content, bytes) else repr(content).encode()).hexdigest()[:12]


def described(arms: tuple[ArmStatus, ...], words: str) -> dict[str, Json]:
    rows: list[Json] = [
        [arm.words, arm.seen, *(f"{each:.9g}" for each in (arm.predicted_s, arm.believed_s, arm.error))] for arm in arms
    ]
    return {"arms": digest(rows), "count": len(rows), "best": rows[0] if rows else None, "tuner": words}


class Decided:
    """Decisions of a DDP job's agent, each with the iterations before it."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.rows: list[Json] = []
        self.known = 0

    def iterations(self, agent: Any, count: int) -> None:
        for _ in range(count):
            trained(self.job, agent, 1)
            self.note()

    def note(self) -> None:
        for decision in self.job.control.decisions[self.known :]:
            sizes = [segment.block_bytes >> 10 for segment in decision.cut.segments]
            phases: list[Json] = [decision.at_once, digest((decision.order, decision.together, decision.gathers))]
            self.rows.append([round(self.job.now_s, 6), sizes[:4], len(decision.order), *phases])
        self.known = len(self.job.control.decisions)

    def value(self, agent: Any) -> Json:
        record, session = self.job.record, agent.session
        return {
            "decisions": self.rows,
            "turns": self.job.control.turns,
            "now_s": round(self.job.now_s, 6),
            "plans": [record.plans, record.why, None if record.predicted_s is None else f"{record.predicted_s:.9g}"],
            "predicted": [
                f"{each:.9g}" if each else None
                for each in (record.predicted.iteration_s, record.predicted.stock_iteration_s)
            ],
            "kept": [record.began_warm, record.kept_was_dropped],
            **described(session.arms, session.tuner_in_words),
        }


def clips_for_a_while(job: Job, agent: Any, decided: Decided) -> None:
    decided.iterations(agent, 30)
    job.clips = True
    decided.iterations(agent, 30)
    job.clips = False
    job.network = Network(60e6, 1e-3)
    decided.iterations(agent, 30)


def asks_for_norms(job: Job, agent: Any, decided: Decided) -> None:
    job.turns = SimpleNamespace(possible=True, believed={})
    decided.iterations(agent, 40)
    assert isinstance(job, Clipping)
    job.asks = False
    decided.iterations(agent, 20)


def slows_down(job: Job, agent: Any, decided: Decided) -> None:
    decided.iterations(agent, 30)
    job.profile = at_pace(job.profile, 1.4)
    job.control.pace = 1.3
    decided.iterations(agent, 30)


REVERSED = list(reversed(range(len(PROFILE.gradients))))
DDP: dict[str, tuple[Callable[[], Job], Callable[[Job, Any, Decided], None], Probe | None]] = {
    "clips for a while": (Job, clips_for_a_while, None),
    "asks for norms": (Clipping, asks_for_norms, None),
    "far away": (lambda: Distant(Network(83e6, 0.5e-3, 0.04), TUTORIAL, 1e-3), slows_down, Probe(4 << 10, 0.04)),
    "in bursts": (lambda: Bursts(Network(31.25e6, 0.0, 0.05), TUTORIAL), slows_down, Probe(4 << 10, 0.05)),
    "registered backwards": (lambda: Distant(NETWORK, PROFILE, registered=REVERSED), slows_down, None),
}


@pytest.mark.parametrize("name", DDP)
def test_collectives_are_decided_as_before(name: str, golden: Golden) -> None:
    make, goes_on, alone = DDP[name]
    job = make()
    agent, decided = module_agent(job, alone=alone), Decided(job)
    goes_on(job, agent, decided)
    golden.check(f"decisions/ddp {name}", decided.value(agent))


def test_collectives_that_torch_does_as_well_are_decided_as_before(golden: Golden) -> None:
    job = Restless(1)
    job.turns = SimpleNamespace(possible=True, believed={})
    agent, decided = module_agent(job), Decided(job)
    trained_with_turns(job, agent, until_s=130.0)
    decided.note()
    believed = {way: f"{belief.iteration_s:.9g}" for way, belief in job.turns.believed.items()}
    golden.check("decisions/ddp torch", {"value": decided.value(agent), "believed": believed})


def test_a_warm_start_of_collectives_is_decided_as_before(golden: Golden, tmp_path: Path) -> None:
    values = []
    for bandwidth in (312.5e6, 312.5e6, 20e6):
        job = Job(Network(bandwidth, 2e-3), profile=resnet50(50_000_000, backward_s=0.2, forward_s=0.1))
        agent, decided = module_agent(job, warm=warm_start(tmp_path)), Decided(job)
        decided.iterations(agent, 40)
        values.append(decided.value(agent))
        agent.leave()
    golden.check("decisions/ddp warm", values)


SMALL = Profile("job", tuple(GradientProfile(f"g{n}", 1 << 20, 0.03 * (12 - n), 0.01) for n in range(12)))


class BytePS:
    """A job on BytePS under an agent, and what this has decided."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, policy: str, network: Network, cache: Path | None, **environ: str
    ) -> None:
        self.clock = [1000.0]
        monkeypatch.setattr(time, "monotonic", lambda: self.clock[0])
        for name, value in {"DMLC_NUM_WORKER": "2", "DMLC_NUM_SERVER": "1", **environ}.items():
            monkeypatch.setenv(name, value)
        self.hook = VirtualHook()
        hook: Any = self.hook
        self.agent = Agent("torch", Settings(policy, cache=cache), get_policy(policy), None, hook, "")
        self.job = VirtualBytePS(self.agent, self.hook, self.clock, SMALL, network)
        self.rows: list[Json] = []
        self.wished: Any = None
        self.known = 0

    def iterations(self, count: int) -> None:
        for _ in range(count):
            self.job.iterate()
            self.agent._turn()
            self.note()

    def note(self) -> None:
        wish, network = self.agent._board.said()
        plans = self.hook.plans[self.known :]
        self.known = len(self.hook.plans)
        if not plans and wish == self.wished:
            return
        self.wished = wish
        sizes = None if wish.cut is None else [segment.block_bytes >> 10 for segment in wish.cut.segments][:4]
        credits = [plan.push.credit for plan in plans]
        taken = [digest(encode_plan(plan)) for plan in plans]
        speed = (
            None if network is None else f"{network.bandwidth:.9g} {network.overhead_s:.6g} {network.ack_delay_s:.6g}"
        )
        self.rows.append([round(self.clock[0], 6), sizes, wish.credit, credits, taken, speed])

    def end(self) -> Json:
        self.agent._finish()
        status = self.agent._status()
        counts: list[Json] = [
            status.plans,
            status.recuts,
            status.last_recut_s,
            status.recut_reason,
            status.recut_predicted_s,
        ]
        warm: list[Json] = [status.began_warm, status.kept_was_dropped, list(status.refused)]
        return {
            "decisions": self.rows,
            "status": [*counts, *warm, digest(status.network), digest(status.deadlines)],
            **described(status.arms, status.tuner),
        }


def test_a_deciding_worker_of_byteps_decides_as_before(golden: Golden, monkeypatch: pytest.MonkeyPatch) -> None:
    made = BytePS(monkeypatch, "prophet", Network(30e6, 2e-3, 5e-3), None)
    made.iterations(25)
    made.job.refused = [Cut.uniform(1 << 20)]
    made.job.network = Network(60e6, 1e-3, 20e-3)
    made.iterations(25)
    made.job.barrier = True
    made.iterations(10)
    golden.check("decisions/byteps decides", made.end())


def test_a_following_worker_of_byteps_decides_as_before(golden: Golden, monkeypatch: pytest.MonkeyPatch) -> None:
    made = BytePS(monkeypatch, "prophet", Network(30e6, 2e-3), None, DMLC_WORKER_ID="1")
    made.job.follows = True
    for credit, size in ((1 << 20, 256 << 10), (2 << 20, 1 << 20)):
        made.iterations(8)
        made.agent._board.taken_up(0, Cut.uniform(size), credit)
    made.iterations(10)
    golden.check("decisions/byteps follows", made.end())


@pytest.mark.parametrize("policy", ["p3", "bytescheduler", "fifo", "prophet"])
def test_gradients_in_another_order_are_decided_as_before(
    golden: Golden, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    made = BytePS(monkeypatch, policy, Network(30e6, 2e-3), None)
    made.job.reverses = True
    made.iterations(12)
    made.job.network = Network(10e6, 2e-3)
    made.iterations(10)
    golden.check(f"decisions/byteps {policy} reversed", made.end())


def test_a_warm_start_on_byteps_decides_as_before(
    golden: Golden, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    values = []
    for bandwidth in (60e6, 60e6, 8e6):
        made = BytePS(monkeypatch, "prophet", Network(bandwidth, 1e-3, 1e-3), tmp_path)
        made.iterations(45)
        values.append(made.end())
    golden.check("decisions/byteps warm", values)
