"""Transports of updates and models in MLfabric's cluster: rings, eager batches, fair sharing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prophet_mlfabric.studies.cluster import (
    RR_SYNC,
    StudiedCluster,
    Trainee,
    mlfabric_a,
    run,
)
from prophet_mlfabric.studies.settings import COMPUTE, GBIT, NETWORK, Rates, Setting, Stragglers, TrafficMix
from prophet_mlfabric.studies.tables import compare_with_ring
from prophet_mlfabric.studies.transports import Ring, fair_rates
from prophet_scheduler.core.errors import UserError

CALM = Setting(Stragglers(0.0, 1.0), TrafficMix((10 * GBIT,), (1.0,)), overlap=0.0)
"""No stragglers, no traffic, no overlap of transfers and computing."""
UP, DOWN = 0, 1


def slow(setting: Setting, links: Mapping[tuple[int, int], float]) -> Rates:
    """Return the full rate for all NICs, but the given share of it for each of `links`, (machine, UP or DOWN)."""
    values = np.full((setting.machines, 2, 1), setting.bandwidth)
    for link, share in links.items():
        values[link] *= share
    return Rates(setting, values)


class Begun(Trainee):
    """Trainee that notes when each worker gets a model."""

    def __init__(self) -> None:
        self.begun: list[tuple[int, float]] = []

    def begin(self, worker: int, model: object, now_s: float) -> None:
        self.begun.append((worker, now_s))


# Rings


def ring(setting: Setting, rates: Rates) -> Ring:
    return Ring(StudiedCluster(setting, RR_SYNC, rates), rates)


def test_a_slow_computation_anywhere_delays_every_ring_step() -> None:
    setting = replace(CALM, workers=3, machines=3)
    part_s = setting.model_bytes / 3 / setting.bandwidth
    travels = ring(setting, slow(setting, {}))
    for late in range(3):
        ready_s = [1.0 if machine == late else 0.0 for machine in range(3)]
        assert travels.end_s(ready_s) == pytest.approx(1.0 + 4 * part_s)


@pytest.mark.parametrize("link", [(1, UP), (2, DOWN)])
def test_a_slow_link_anywhere_delays_every_ring_step(link: tuple[int, int]) -> None:
    setting = replace(CALM, workers=3, machines=3)
    part_s = setting.model_bytes / 3 / setting.bandwidth
    assert ring(setting, slow(setting, {link: 0.1})).end_s([0.0] * 3) == pytest.approx(4 * 10 * part_s)


def test_a_changing_link_delays_only_the_steps_of_its_slow_time() -> None:
    setting = replace(CALM, workers=2, machines=2, traffic=replace(CALM.traffic, period_s=0.02))
    values = np.full((2, 2, 2), setting.bandwidth)
    values[0, UP, 0] *= 0.5
    # 50 MB at 0.625 GB/s until 0.02 s, the other 37.5 MB in 0.03 s, and the second step in 0.04 s.
    assert ring(setting, Rates(setting, values)).end_s([0.0, 0.0]) == pytest.approx(0.09)


def test_a_straggler_overlaps_no_more_than_others() -> None:
    # Of the last 60 ms; 2 * 14 / 15 of 100 MB take 0.1493 s.
    setting = replace(CALM, stragglers=Stragglers(1.0, 4.0), overlap=0.6)
    record = run(setting, RR_SYNC, iterations=2)
    iteration = 0.4 + 2 * 14 / 15 * 0.08 - 0.06
    assert record.applied_s[29::30] == pytest.approx([iteration, 2 * iteration])
    assert record.ready_s == pytest.approx([0.4, iteration + 0.4])


# MLfabric


def test_an_eager_scheduler_does_not_wait_for_batches_by_hand() -> None:
    # 0.1 s of computing, 0.08 s up, 0.08 s down: no batch is waited for.
    setting = replace(CALM, workers=1, machines=1, eager=True)
    assert run(setting, mlfabric_a(1), iterations=3).applied_s == pytest.approx([0.18, 0.44, 0.7])


def test_an_eager_scheduler_batches_while_the_server_receives() -> None:
    setting = replace(CALM, workers=6, machines=6, eager=True, batch_s=10.0)
    # All updates are ready at the same time, so the first batch has them all.
    record = run(setting, mlfabric_a(None), iterations=5)
    assert Counter(record.by_worker) == dict.fromkeys(range(6), 5)
    patient = run(replace(setting, eager=False, batch_s=0.1), mlfabric_a(None), iterations=5)
    assert record.end_s < patient.end_s


def test_a_model_is_sent_while_the_servers_nic_has_bandwidth_left() -> None:
    setting = replace(CALM, workers=2, machines=2)
    learner = Begun()
    run(setting, mlfabric_a(None), learner, iterations=2, rates=slow(setting, {(0, DOWN): 0.1}))
    begun = {worker: time_s for worker, time_s in learner.begun if time_s > 0}
    assert begun[0] > 1.0 > 0.6 > begun[1]


@pytest.mark.parametrize("eager", [False, True])
def test_each_worker_ends_with_its_last_update(eager: bool) -> None:
    setting = Setting(COMPUTE["C2"], NETWORK["N3"], workers=6, machines=6, eager=eager, seed=5)
    record = run(setting, mlfabric_a(6), iterations=8)
    assert len(record.applied_s) + len(record.dropped_s) == 6 * 8
    assert max(record.delays) <= 6
    assert record.end_s == max(record.applied_s[-1], *record.dropped_s, 0.0)


# A server without a scheduler

RATES = st.integers(1, 20).map(float)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(4, 7)), min_size=1, max_size=8), st.lists(RATES, min_size=8))
def test_fair_rates_fill_one_link_of_every_flow_and_exceed_none(
    pairs: list[tuple[int, int]], limits: list[float]
) -> None:
    paths, capacities = np.array(pairs), np.array(limits[:8])
    shares = fair_rates(paths, capacities)
    load = np.bincount(paths.ravel(), np.repeat(shares, 2), 8)
    assert (load <= capacities * (1 + 1e-9)).all()
    for flow, path in enumerate(paths):
        # Max-min: each flow has a full link on which nobody has more.
        assert any(
            load[link] >= capacities[link] * (1 - 1e-9)
            and all(shares[flow] >= shares[o] * (1 - 1e-9) for o in range(len(pairs)) if link in paths[o])
            for link in path
        )


# MLfabric compared with a ring


def test_ring_times_and_the_servers_use_by_hand() -> None:
    setting = replace(CALM, workers=4, machines=4, overlap=0.0)
    stepped, ours = run(setting, RR_SYNC, iterations=3), run(setting, mlfabric_a(None), horizon_s=40.0)
    both = compare_with_ring(setting, stepped, ours, ours.end_s)
    assert both.computing_s == pytest.approx(0.1) and both.transfers_s == pytest.approx(2 * 3 / 4 * 0.08)
    assert both.ratio == pytest.approx(0.22 / both.mlfabric_s)
    assert both.needed(0.08, 4) == pytest.approx(4 * 0.08 / 0.22)
    assert both.updates_a_message >= 1
    # The server's NIC receives for this share of the time.
    assert both.busy == pytest.approx(4 * 0.08 / both.updates_a_message / both.mlfabric_s)


def test_too_short_jobs_cannot_be_compared() -> None:
    short = run(CALM, RR_SYNC, horizon_s=0.01)
    with pytest.raises(UserError, match="too short"):
        compare_with_ring(CALM, short, short, 0.01)
