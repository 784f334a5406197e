"""MLfabric's cluster on a virtual clock: settings, the wire, workers, servers of all three kinds, the replica."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from prophet_mlfabric.network import bytes_after
from prophet_mlfabric.scheduler import PlannedTransfer
from prophet_mlfabric.studies.cluster import (
    ASYNC,
    MLFABRIC_S,
    RR_SYNC,
    TR_SYNC,
    Method,
    Record,
    Trainee,
    mlfabric_a,
    run,
)
from prophet_mlfabric.studies.settings import (
    COMPUTE,
    GBIT,
    NETWORK,
    Computations,
    Rates,
    Setting,
    Stragglers,
    TrafficMix,
)
from prophet_mlfabric.studies.transports import Wire
from prophet_scheduler.core.errors import UserError
from support.golden import Golden, Json
from support.links import rate_at

Vector: TypeAlias = NDArray[np.float64]
CALM = Setting(Stragglers(0.0, 1.0), TrafficMix((10 * GBIT,), (1.0,)))
"""No stragglers, no traffic."""
SMALL = Setting(workers=6, machines=3, seed=4)
METHODS = {
    "mlfabric-a": mlfabric_a(None),
    "mlfabric-s": MLFABRIC_S,
    "async": ASYNC,
    "rr-sync": RR_SYNC,
    "tr-sync": TR_SYNC,
    "mlfabric-a-replica": replace(mlfabric_a(8), divergence_bound=6.0, momentum=0.5),
}


class Following(Trainee):
    """Trainee whose models are the vectors of Eq. 2 with real momentum; it records all calls."""

    def __init__(self, momentum: float = 0.0, seed: int = 0) -> None:
        self.momentum = momentum
        self.random = np.random.default_rng(seed)
        self.server: list[Vector] = [np.zeros(4)] * 2
        self.replica: list[Vector] = [np.zeros(4)] * 2
        self.begun: list[tuple[int, int, float]] = []
        self.computed: list[tuple[int, int, bytes]] = []
        self.steps: list[list[bytes]] = []
        self.apart = 0.0

    def read(self) -> int:
        return len(self.steps)

    def begin(self, worker: int, model: int, now_s: float) -> None:
        self.begun.append((worker, model, now_s))

    def compute(self, worker: int, model: int) -> tuple[Vector, float]:
        update = self.random.normal(size=4)
        update *= self.random.uniform(0.2, 1.0) / np.linalg.norm(update)
        self.computed.append((worker, model, update.tobytes()))
        return update, float(np.linalg.norm(update))

    def move(self, models: list[Vector], updates: Sequence[Vector]) -> None:
        models.append(models[-1] + sum(updates[1:], updates[0]) + self.momentum * (models[-1] - models[-2]))

    def apply(self, updates: Sequence[Vector]) -> None:
        self.steps.append([update.tobytes() for update in updates])
        self.move(self.server, updates)

    def replicate(self, updates: Sequence[Vector]) -> None:
        self.move(self.replica, updates)

    def observe(self, now_s: float, applied: int) -> None:
        self.apart = max(self.apart, float(np.linalg.norm(self.server[-1] - self.replica[-1])))


# Settings


def test_draws_follow_chances_and_seed() -> None:
    rates = Rates.draw(Setting(traffic=NETWORK["N2"], seed=1), 5000.0)
    shares = [float((rates.values == rate).mean()) for rate in NETWORK["N2"].rates]
    assert shares == pytest.approx([0, 0.1, 0.1, 0.1, 0.7], abs=0.01)
    again = Rates.draw(Setting(traffic=NETWORK["N2"], seed=1), 500.0)
    assert (again.values == rates.values[:, :, : again.values.shape[2]]).all()
    # Up and down are drawn separately; server and replica keep their rate.
    assert (rates.values[:, 0] != rates.values[:, 1]).any()
    up, down = rates.at(7.0)
    assert (up[15:], down[15:]) == ([1.25e9] * 2, [1.25e9] * 2)

    computations = Computations(Setting(COMPUTE["C2"], seed=1))
    slow = [computations.next_s(worker) > 0.1 for worker in range(30) for _ in range(300)]
    assert sum(slow) / len(slow) == pytest.approx(0.1, abs=0.01)


# The wire


@hypothesis_settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 25))
def test_the_wire_respects_rates_and_sends_a_sum_after_its_parts(seed: int, count: int) -> None:
    setting = Setting(traffic=NETWORK["N3"], workers=4, machines=4, seed=seed)
    rates, random = Rates.draw(setting, 60.0), np.random.default_rng(seed)
    wire, now = Wire(rates), 0.0
    sent: list[PlannedTransfer] = []
    for _ in range(count):
        now += float(random.uniform(0, 0.3))
        source, destination = random.choice(5, 2, replace=False)
        after = tuple(transfer for transfer in sent if random.random() < 0.1)
        size = float(random.integers(1, 9)) * 5e7
        sent.append(wire.send(PlannedTransfer(int(source), int(destination), size, (), after), now))
        assert all(transfer.end_s <= sent[-1].pieces[0][0] for transfer in after)
        assert bytes_after(sent[-1].pieces, -1.0) == pytest.approx(size)
        if random.random() < 0.3:
            network, until = wire.believed(now)
            assert all(end >= now for end in until.values()) and len(network) == 6
    true = rates.network()
    for at in random.uniform(0, now + 5, 40):
        for node in range(5):
            out = sum(r for way in sent if way.source == node for b, e, r in way.pieces if b <= at < e)
            into = sum(r for way in sent if way.destination == node for b, e, r in way.pieces if b <= at < e)
            assert out <= rate_at(true.uplinks[node], at) * (1 + 1e-9)
            assert into <= rate_at(true.downlinks[node], at) * (1 + 1e-9)


# Jobs, by hand


def test_one_worker_by_hand() -> None:
    # 0.1 s of computing, the batch at 0.2, 0.08 s up; the model down from 0.3 to 0.38, batch at 0.5.
    setting = replace(CALM, workers=1, machines=1)
    record = run(setting, mlfabric_a(1), iterations=3)
    assert record.applied_s == pytest.approx([0.28, 0.58, 0.88])
    assert record.delays == [1, 1, 1]


def test_a_tree_by_hand() -> None:
    # Three machines: both children into the root's NIC, 0.16 s, and both results out of it, 0.16 s.
    record = run(replace(CALM, workers=3, machines=3), TR_SYNC, iterations=1)
    assert record.applied_s == pytest.approx([0.1 + 0.16 + 0.16] * 3)


def test_a_fairly_shared_server_by_hand() -> None:
    # Figure 1a: all transfers share the server's NIC and end together.
    record = run(replace(CALM, workers=3, machines=3), ASYNC, iterations=1)
    assert record.applied_s == pytest.approx([0.1 + 0.24] * 3)
    assert record.delays == [1, 2, 3]


# Jobs, properties


def held(record: Record) -> Json:
    return {
        "updates": len(record.applied_s),
        "first_applied_s": record.applied_s[:5],
        "last_applied_s": record.applied_s[-5:],
        "sum_of_delays": sum(record.delays),
        "by_worker": [record.by_worker.count(worker) for worker in range(10)],
        "dropped_s": record.dropped_s,
        "sent_to_server": record.sent_to_server,
        "sent_to_replica": record.sent_to_replica,
        "replicated": record.replicated,
        "end_s": record.end_s,
    }


@pytest.mark.parametrize("name", METHODS)
def test_a_seed_determines_the_run_exactly(name: str, golden: Golden) -> None:
    setting = Setting(COMPUTE["C2"], NETWORK["N2"], workers=10, machines=5, seed=3)
    first, again = (run(setting, METHODS[name], horizon_s=20.0) for _ in range(2))
    assert first == again
    golden.check(f"mlfabric/{name}", held(first))
    assert first != run(replace(setting, seed=4), METHODS[name], horizon_s=20.0)
    assert first.applied_s == sorted(first.applied_s)


def test_a_step_beyond_the_divergence_bound_is_refused() -> None:
    with pytest.raises(UserError, match="one step moves the model by up to 1; give more"):
        run(SMALL, replace(mlfabric_a(3), divergence_bound=0.5), horizon_s=5.0)


@pytest.mark.parametrize("bound", [1, 4, 7, 12])
def test_no_delay_exceeds_the_bound(bound: int) -> None:
    setting = Setting(COMPUTE["C2"], NETWORK["N3"], workers=12, machines=6, seed=bound)
    free, held = (run(setting, mlfabric_a(delay_bound), horizon_s=30.0) for delay_bound in (None, bound))
    assert max(free.delays) > 12 and not free.dropped_s
    assert max(held.delays) == bound and held.dropped_s


@pytest.mark.parametrize("name", METHODS)
def test_every_update_is_applied_or_dropped_once(name: str) -> None:
    method = METHODS[name] if name != "mlfabric-a" else mlfabric_a(5)
    learner = Following()
    record = run(replace(SMALL, stragglers=COMPUTE["C2"]), method, learner, horizon_s=30.0)
    applied = Counter(update for step in learner.steps for update in step)
    made = Counter(update for _, _, update in learner.computed)
    assert applied.most_common(1)[0][1] == 1 and not applied - made
    # All other updates are in flight: at most one per worker.
    left = len(learner.computed) - len(record.applied_s) - len(record.dropped_s)
    assert 0 <= left <= SMALL.workers
    assert sum(applied.values()) == len(record.applied_s) == len(record.by_worker)
    # Delays are Eq. 9's, counted in steps of the server.
    read = {update: (worker, version) for worker, version, update in learner.computed}
    place = 0
    for version, step in enumerate(learner.steps, start=1):
        for update in step:
            assert (record.by_worker[place], version - record.delays[place]) == read[update]
            place += 1


@pytest.mark.parametrize("method", [MLFABRIC_S, RR_SYNC, TR_SYNC])
def test_a_synchronous_step_has_one_update_of_each_worker(method: Method) -> None:
    learner = Following()
    run(SMALL, method, learner, iterations=5)
    worker_of = {update: worker for worker, _, update in learner.computed}
    assert len(learner.steps) == 5
    assert all([worker_of[update] for update in step] == list(range(6)) for step in learner.steps)


@pytest.mark.parametrize(("bound", "momentum"), [(2.0, 0.0), (6.0, 0.5), (15.0, 0.8)])
def test_the_replica_stays_within_its_bound_and_follows_exactly(bound: float, momentum: float) -> None:
    learner = Following(momentum)
    method = replace(mlfabric_a(8), divergence_bound=bound, momentum=momentum)
    record = run(replace(SMALL, traffic=NETWORK["N3"]), method, learner, horizon_s=60.0)
    assert 0 < learner.apart <= bound
    both = list(zip(learner.server, learner.replica, strict=False))
    assert len(both) > 10 and all((ours == theirs).all() for ours, theirs in both)
    assert record.replicated > 10
