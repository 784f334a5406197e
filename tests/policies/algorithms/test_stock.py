"""Prediction of an iteration in the engine's own order."""

from __future__ import annotations

import pytest

from prophet_scheduler.core.network import Network
from prophet_scheduler.core.profile import Profile
from prophet_scheduler.models import zoo
from prophet_scheduler.policies.algorithms.stock import stock_iteration_s
from support.profiles import profile as profile_of
from support.profiles import resnet50

MB = 1_000_000
LINK = Network(10 * MB)


def profile(*rows: tuple[int, float], forward_s: float = 0.1) -> Profile:
    each = forward_s / len(rows)
    return profile_of(*((size, generated_s, each) for size, generated_s in rows))


def test_gradients_go_in_order_of_arrival_and_forward_waits_for_all() -> None:
    # 2 MB at 0.1 s and 1 MB at 0.2 s: the wire has the first until 0.3 s, the second until 0.4 s.
    job = profile((1 * MB, 0.2), (2 * MB, 0.1))
    assert stock_iteration_s(job, LINK, ranks=2) == pytest.approx(0.4 + 0.1)
    # A server is asked for the first at 0.3 s, and the question leaves behind the second push; 3 MB take 0.3 s.
    assert stock_iteration_s(job, LINK, ranks=None) == pytest.approx(0.4 + 0.3 + 0.1, rel=1e-3)


def test_a_fast_wire_adds_no_time() -> None:
    job = profile((1000, 0.5), (1000, 0.1))
    assert stock_iteration_s(job, Network(1e12), ranks=2) == pytest.approx(0.6)


def test_a_bucket_waits_for_its_last_gradient() -> None:
    # After the first bucket's mebibyte all is one bucket, which waits for the last gradient.
    job = profile((2 * MB, 0.3), (2 * MB, 0.2), (2 * MB, 0.1))
    assert stock_iteration_s(job, LINK, ranks=2) == pytest.approx(0.3 + 0.4 + 0.1)


def test_predictions_are_near_measured_times() -> None:
    # docs/results/allreduce.md: DDP as it comes, 25.6 MB, 0.6 + 0.3 s at 250 Mbit/s, took 1.669 s.
    job = resnet50(25_600_000, backward_s=0.6, forward_s=0.3)
    assert stock_iteration_s(job, Network(31.25e6, 1e-3), ranks=2) == pytest.approx(1.669, rel=0.05)
    # docs/results/validation.md: stock BytePS at 100, 250 and 500 Mbit/s.
    for mbit_per_s, took_s in ((100, 4.207), (250, 1.720), (500, 0.970)):
        link = Network(mbit_per_s * 125e3, 1e-4, 2.8e-4)
        assert stock_iteration_s(job, link, ranks=None) == pytest.approx(took_s, rel=0.02)
    # allreduce.md: 100 MB at 1 Gbit/s with 5 ms each way, where a small operation takes 41 ms (operations.md).
    bert = zoo.profile("bert-base", total_bytes=100_000_000, backward_s=0.2, forward_s=0.1)
    far, near = Network(125e6, 3e-4, 0.041), Network(125e6, 3e-4, 0.001)
    assert stock_iteration_s(bert, far, ranks=2) == pytest.approx(1.479, rel=0.1)
    assert stock_iteration_s(bert, far, ranks=2) > stock_iteration_s(bert, near, ranks=2) + 0.2
    # The same with 0.6 + 0.3 s of computing took 1.94 s, and 2.25 s in buckets of 1 MiB (2026-12-01).
    slower = zoo.profile("bert-base", total_bytes=100_000_000, backward_s=0.6, forward_s=0.3)
    assert stock_iteration_s(slower, Network(106e6, 3e-4, 0.041), ranks=2) == pytest.approx(1.94, rel=0.05)
    assert stock_iteration_s(slower, Network(106e6, 3e-4, 0.041), 2, 1 << 20) == pytest.approx(2.25, rel=0.1)
