"""Advice: the predictions of each change, and the conclusions from them."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.profile import GradientProfile, Profile
from prophet_scheduler.lab import advice as advice_module
from prophet_scheduler.lab.advice import (
    CHANGES,
    Situation,
    advise,
    contender_of,
    on_its_links,
    predicted_s,
    prediction_error,
)
from prophet_scheduler.lab.advice_sources import LinkOptions, of_profile
from prophet_scheduler.lab.records import Advice, Suggestion

MBIT = 1e6


def profile(megabytes: float, backward_s: float = 0.2, forward_s: float = 0.1, gradients: int = 8) -> Profile:
    """Gradients of one size, generated at even distances."""
    size = int(megabytes * 1e6 / gradients)
    rows = [
        GradientProfile(f"g{i}", size, backward_s * (gradients - i) / gradients, forward_s / gradients)
        for i in range(gradients)
    ]
    return Profile("even", tuple(rows))


def situation(megabytes: float = 10.0, policy: str = "ddp-prophet", **links: Any) -> Situation:
    """10 MB at 250 Mbit/s take 0.32 s, beside 0.3 s of computing."""
    return of_profile(profile(megabytes), policy, LinkOptions(**{"bandwidth": 250 * MBIT, **links}))


def by_change(advice: Advice) -> dict[str, Suggestion]:
    return {suggestion.change: suggestion for suggestion in advice.suggestions}


def changed(name: str, before: Situation) -> Situation | None:
    (change,) = (change for change in CHANGES if change.name == name)
    return change.of(before)


def fluid_s(given: Situation) -> float:
    """Stand in for the simulator: computing or sending, whichever takes longer."""
    cell = on_its_links(given)
    computing_s = given.profile.backward_s + given.profile.forward_s
    rate = cell.cluster.bandwidth.rate("worker0")
    assert rate is not None
    topology = given.contender.engine.topology
    assert cell.wire is not None
    total_bytes = cell.wire.total_bytes
    sent_s = topology.worker_share(cell.cluster.workers) * total_bytes * 8 / rate
    if topology.through_servers:
        server = cell.cluster.bandwidth.rate("server0")
        if server is not None:
            sent_s = max(sent_s, cell.cluster.workers / cell.cluster.servers * total_bytes * 8 / server)
    return max(computing_s, sent_s)


def test_advice_on_job_that_waits_for_network() -> None:
    advice = advise(situation(20.0), predict=fluid_s)
    assert advice.network_holds_back and advice.waits == pytest.approx(1 - 0.3 / 0.64)
    found = by_change(advice)
    assert found["twice-the-rate"].iteration_s == pytest.approx(0.32)
    assert found["twice-the-rate"].gain == found["half-precision"].gain == pytest.approx(2.0)
    assert found["larger-batch"].iteration_s == pytest.approx(0.64)
    assert found["larger-batch"].gain == pytest.approx(2.0), "twice the samples in the same time"
    assert found["parameter-servers"].gain == pytest.approx(1.0) and not found["parameter-servers"].helps
    assert "another-server" not in found and "fewer-workers-a-host" not in found and "prophet" not in found


def test_nothing_helps_a_job_that_only_computes() -> None:
    advice = advise(situation(1.0), predict=fluid_s)
    assert not advice.network_holds_back and not any(suggestion.helps for suggestion in advice.suggestions)
    assert {suggestion.gain for suggestion in advice.suggestions} == {1.0}


def test_another_server_helps_narrow_servers() -> None:
    advice = advise(situation(10.0, "prophet", workers=4, servers=1, server_bandwidth=250 * MBIT), predict=fluid_s)
    found = by_change(advice)
    assert advice.servers == 1 and advice.iteration_s == pytest.approx(1.28)
    assert found["another-server"].iteration_s == found["faster-servers"].iteration_s == pytest.approx(0.64)
    assert found["twice-the-rate"].gain == pytest.approx(1.0) and not found["twice-the-rate"].helps
    assert found["ddp"].iteration_s == pytest.approx(0.48), "a ring of four sends half as much again"


def test_workers_on_a_host_share_its_link_with_servers() -> None:
    shared = {"workers": 4, "workers_per_host": 4}
    on_servers = by_change(advise(situation(10.0, "prophet", **shared), predict=fluid_s))
    assert on_servers["fewer-workers-a-host"].gain == pytest.approx(2.0)
    in_a_ring = by_change(advise(situation(10.0, "ddp-prophet", **shared), predict=fluid_s))
    assert in_a_ring["fewer-workers-a-host"].gain == pytest.approx(1.0)
    assert on_its_links(situation(10.0, "prophet", **shared)).cluster.bandwidth.rate("worker3") == 62.5 * MBIT
    three = changed("fewer-workers-a-host", situation(10.0, "prophet", workers=3, workers_per_host=3))
    assert three is not None and three.workers_per_host == 2


def test_half_precision_is_not_advised_twice() -> None:
    before = situation(20.0)
    halved = changed("half-precision", before)
    assert halved is not None and fluid_s(halved) == pytest.approx(0.32)
    assert changed("half-precision", halved) is None


def test_measured_time_scales_predictions_on_same_engine() -> None:
    advice = advise(situation(20.0), 0.64 * 1.1, predict=fluid_s)
    assert (advice.iteration_s, advice.measured_s) == (0.64 * 1.1, 0.64 * 1.1)
    assert advice.simulated_s == pytest.approx(0.64)
    found = by_change(advice)
    assert found["twice-the-rate"].iteration_s == pytest.approx(0.32 * 1.1)
    assert found["parameter-servers"].iteration_s == pytest.approx(0.64), (
        "how far off it is on another engine is not known"
    )


def test_gain_on_other_engine_must_exceed_usual_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advice_module, "_ratios", lambda: {"prophet": [1.25, 1.0, 0.5]})
    advice = advise(situation(20.0), 0.64 * 1.15, predict=fluid_s)
    found = by_change(advice)
    assert found["parameter-servers"].gain == pytest.approx(1.15) and not found["parameter-servers"].helps
    assert (found["parameter-servers"].error, found["parameter-servers"].worst_error) == (0.25, 0.5)
    assert (advice.error, found["twice-the-rate"].error) == (None, None)


def test_prophet_and_other_engine_are_suggested() -> None:
    for policy, names in {
        "stock": ("prophet", "ddp-gloo"),
        "ddp-gloo": ("ddp-prophet", "stock"),
        "p3": ("prophet", "ddp-p3"),
        "ddp-p3": ("ddp-prophet", "p3"),
        "bytescheduler": ("prophet", "ddp-prophet"),
        "ddp-gloo-5": ("ddp-prophet", "stock"),
    }.items():
        before = situation(policy=policy)
        other = changed("ddp", before) or changed("parameter-servers", before)
        under = changed("prophet", before)
        assert other is not None and under is not None
        assert (under.contender.name, other.contender.name) == names


def test_byteps_in_place_of_ddp_has_a_server_per_worker() -> None:
    other = changed("parameter-servers", situation(workers=3))
    assert other is not None and other.cell.cluster.servers == 3
    assert {other.cell.cluster.bandwidth.rate(f"server{place}") for place in range(3)} == {250 * MBIT}


def test_unpredictable_change_is_left_out() -> None:
    def predict(given: Situation) -> float:
        if given.contender.engine.topology.through_servers:
            raise UserError("no")
        return 1.0

    assert "parameter-servers" not in by_change(advise(situation(), predict=predict))
    with pytest.raises(UserError, match="no"):
        advise(situation(policy="prophet"), predict=predict)
    with pytest.raises(UserError, match="unknown policy 'fast'; the known ones are stock"):
        contender_of("fast")


@pytest.mark.parametrize(("policy", "most_s"), [("ddp-prophet", 0.81), ("prophet", 0.83), ("ddp-p3", 0.94)])
def test_prediction_for_program_that_reads_all_averages(policy: str, most_s: float) -> None:
    waits = dataclasses.replace(situation(20.0, policy), waits=True)
    assert 0.765 <= predicted_s(waits) < most_s, "the first gradient after 25 ms, all bytes, and then forward"
    assert predicted_s(situation(20.0, policy)) < predicted_s(waits)


@pytest.mark.parametrize(
    ("policy", "megabytes", "least_s", "most_s"),
    # The first gradient is there after 25 ms, and the last layer computes for 12.5 ms; DDP computes forward then.
    [
        ("ddp-prophet", 20.0, 0.678, 0.71),
        ("ddp-gloo", 20.0, 0.765, 0.94),
        ("prophet", 20.0, 0.678, 0.71),
        ("prophet", 1.0, 0.3, 0.315),
    ],
)
def test_predictions_are_simulated(policy: str, megabytes: float, least_s: float, most_s: float) -> None:
    assert least_s <= predicted_s(situation(megabytes, policy)) < most_s


def test_clipping_job_is_predicted_with_two_phases() -> None:
    given = situation(20.0)
    job = given.cell.job.model_copy(update={"clip_norm": 1.0})
    clips = dataclasses.replace(given, cell=dataclasses.replace(given.cell, job=job))
    # 20 MB take 0.64 s at 250 Mbit/s. Forward hides 0.1 s of the second half, and without phases none.
    assert predicted_s(dataclasses.replace(given, waits=True)) == pytest.approx(0.64 + 0.1, rel=0.1)
    assert predicted_s(clips) == pytest.approx(0.64, rel=0.1)


def test_policy_has_its_own_prediction_error() -> None:
    for base in ("prophet", "stock", "ddp-prophet", "ddp-gloo"):
        usual, worst = prediction_error(base)
        assert usual is not None and worst is not None and 0 <= usual <= worst < 1


def test_uncompared_policy_has_error_of_its_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    ratios = {"prophet": [1.02, 0.9], "stock": [1.3], "ddp-gloo": [1.01]}
    monkeypatch.setattr(advice_module, "_ratios", lambda: ratios)
    assert prediction_error("pace") == pytest.approx((0.1, 0.3))
    assert prediction_error("ddp-pace") == pytest.approx((0.01, 0.01))
    assert prediction_error("mxnet-kvstore") == (None, None)
