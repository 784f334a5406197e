"""Overhead, rate and delay from a job's transfers, with the simulator as the job: a known network must come out.

The job begins as jobs do, with the blocks of the learning cut. A rate within 10%, and the overhead within 25% where it
is at least a tenth of what a block of 128 KiB takes.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from prophet_scheduler.core.cut import Cut, blocks_of, learning_cut
from prophet_scheduler.core.network import Network
from prophet_scheduler.core.plan import Plan, QueuePlan
from prophet_scheduler.core.profile import GradientProfile, Profile
from prophet_scheduler.learn.bandwidth import TransferFit
from prophet_scheduler.learn.wire import PushCosts, fit_wire
from prophet_scheduler.models import zoo
from prophet_scheduler.simulate.cluster import Cluster, Costs, compute_scale
from prophet_scheduler.simulate.job import alone, job_of_profile
from prophet_scheduler.simulate.run import Options, simulate

GBIT = 1e9 / 8
MS = 1e-3
MIB = 1 << 20
ITERATIONS = 6


def blocks_as_gradients(profile: Profile, cut: Cut) -> Profile:
    """A job whose gradients are the blocks of another's."""
    sizes = [gradient.size_bytes for gradient in profile.gradients]
    return Profile(
        "blocks",
        tuple(
            GradientProfile(
                f"block{block.id}",
                block.size_bytes,
                profile.gradients[block.pieces[0].gradient].generation_s,
                sum(profile.gradients[piece.gradient].forward_s for piece in block.pieces if piece.start == 0),
            )
            for block in blocks_of(sizes, ["float32"] * len(sizes), cut)
        ),
    )


def measured(
    rate: float,
    overhead_s: float,
    latency_s: float,
    credit: int | None = 4 * MIB,
    workers: int = 2,
    servers: int = 1,
    server_rate: float | None = None,
    burst: float = 0.0,
) -> Network:
    """Return the first worker's estimate from its pushes; rates in bytes per second, servers' links wide."""
    total = int(max(12e6, min(102.2e6, rate)))
    profile = zoo.profile("resnet50", total_bytes=total, backward_s=0.1, forward_s=0.05)
    profile = blocks_as_gradients(profile, learning_cut(total))
    links = {f"worker{number}": ((0.0, rate),) for number in range(workers)}
    links |= {f"server{number}": ((0.0, server_rate or 2 * rate * workers / servers),) for number in range(servers)}
    cluster = Cluster(workers, servers, links, Costs(overhead_s, latency_s, burst_bytes=burst))
    options = Options(
        iterations=ITERATIONS,
        partition_bytes=1 << 30,
        plan=Plan(push=QueuePlan(order={}, credit=credit), pull=QueuePlan(order={})),
        compute_scale=compute_scale(workers, ITERATIONS, jitter=0.05),
    )
    fit = TransferFit(window_s=1e9)
    fit.observe(simulate(job_of_profile(profile, alone(profile)), cluster, None, options).events)
    network = fit.fit()
    assert network is not None
    return network


def check(network: Network, rate: float, overhead_s: float, latency_s: float) -> None:
    assert network.bandwidth == pytest.approx(rate, rel=0.10)
    if overhead_s >= 0.1 * 131072 / rate:
        assert network.overhead_s == pytest.approx(overhead_s, rel=0.25)
    assert network.ack_delay_s == pytest.approx(2 * latency_s, rel=0.15, abs=0.3 * MS)


@pytest.mark.parametrize("credit", [MIB // 2, 4 * MIB, None], ids=["512K", "4M", "all"])
@pytest.mark.parametrize("latency_s", [0.1 * MS, 1 * MS, 5 * MS])
@pytest.mark.parametrize(
    ("gbit", "overhead_s"),
    [(0.1, 1 * MS), (1, 0.2 * MS), (1, 1 * MS), (5, 0.05 * MS), (5, 1 * MS), (25, 0.2 * MS), (50, 0.05 * MS)],
)
def test_a_known_network_comes_out(gbit: float, overhead_s: float, latency_s: float, credit: int | None) -> None:
    """Also where a small credit lets the wire run dry, and where acknowledgements wait behind answers."""
    rate = gbit * GBIT
    network = measured(rate, overhead_s, latency_s, credit)
    assert network.bandwidth == pytest.approx(rate, rel=0.10)
    if overhead_s >= 0.1 * 131072 / rate:
        assert network.overhead_s == pytest.approx(overhead_s, rel=0.25)


@pytest.mark.parametrize(("gbit", "latency_s"), [(1, 5 * MS), (5, 1 * MS), (25, 5 * MS)])
def test_the_delay_of_an_acknowledgement_is_that_of_an_idle_network(gbit: float, latency_s: float) -> None:
    check(measured(gbit * GBIT, 0.2 * MS, latency_s), gbit * GBIT, 0.2 * MS, latency_s)


@pytest.mark.parametrize("overhead_s", [0.05 * MS, 0.2 * MS])
def test_servers_that_are_busy_are_not_taken_for_overhead(overhead_s: float) -> None:
    """Four workers send to the same server at once, so links are idle while a server is busy."""
    network = measured(5 * GBIT, overhead_s, 0.1 * MS, MIB // 2, workers=4, servers=4, server_rate=5 * GBIT)
    check(network, 5 * GBIT, overhead_s, 0.1 * MS)


def test_one_server_for_two_workers_gives_each_half_of_its_link() -> None:
    network = measured(1 * GBIT, 0.2 * MS, 1 * MS, None, server_rate=1 * GBIT)
    assert network.bandwidth == pytest.approx(0.5 * GBIT, rel=0.1)
    assert network.overhead_s < 0.25 * MS


@pytest.mark.parametrize("gbit", [1, 5, 25])
def test_a_token_bucket_gives_its_rate(gbit: float) -> None:
    rate = gbit * GBIT
    network = measured(rate, 0.2 * MS, 0.1 * MS, None, burst=rate * MS)
    assert network.bandwidth == pytest.approx(rate, rel=0.10)
    assert network.overhead_s == pytest.approx(0.2 * MS, rel=0.25)


def test_a_wire_on_which_nothing_ever_waited_says_nothing() -> None:
    starts = np.arange(100) * 1.0
    assert fit_wire(starts, starts + 0.001, np.tile([1000.0, 100_000.0], 50), np.ones(100, bool)) is None


def test_bytes_that_cost_nothing_are_no_error() -> None:
    starts = np.repeat(np.arange(20) * 1.0, 5)
    finishes = starts + np.tile(np.arange(1, 6) * 0.001, 20)
    wire = fit_wire(starts, finishes, np.tile([1000.0, 100_000.0, 30_000.0, 2000.0], 25), np.ones(100, bool))
    assert wire is not None
    assert wire.overhead_s == pytest.approx(0.001, rel=0.01)
    assert 1.0 / wire.seconds_per_byte >= 1e10


def test_a_stall_of_a_busy_wire_does_not_look_like_delay() -> None:
    costs = 0.0005 + np.tile([131072.0, 20000.0, 60000.0], 100) / 30e6
    finishes = np.cumsum(costs)
    finishes[150:] += 0.3
    starts = np.concatenate([np.zeros(4), finishes[:-4]])
    wire = fit_wire(starts, finishes, np.tile([131072.0, 20000.0, 60000.0], 100), np.ones(300, bool))
    assert wire is not None
    assert 1.0 / wire.seconds_per_byte == pytest.approx(30e6, rel=0.02)
    assert wire.overhead_s == pytest.approx(0.0005, rel=0.1)
    assert wire.ack_delay_s < 0.002


def test_blocks_of_one_size_that_go_one_at_a_time_leave_what_is_known_as_it_is() -> None:
    """Nothing in them tells a slow wire from a fast one behind a delay."""
    taken_s = 0.0001 + 262144 / 300e6 + 0.0003
    starts = np.arange(200) * taken_s
    pushes = (starts, starts + taken_s, np.full(200, 262144.0), np.ones(200, bool))
    known = PushCosts(0.0001, 1 / 300e6, 0.0003)
    assert fit_wire(*pushes, known) == replace(known, told_apart=False)
    alone = fit_wire(*pushes)
    assert alone is not None and alone.ack_delay_s + 262144 * alone.seconds_per_byte == pytest.approx(taken_s)
