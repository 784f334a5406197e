"""The map of gains: from times to gains, what no order can exceed, and one small job that is simulated here."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from prophet_scheduler.lab.results import lower_bound
from support.results import cell, policy
from tools import gain_map, kept
from tools.figures import OURS, STOCK
from tools.gain_map import RATIOS, Curve
from tools.kept import Point

ROOT = Path(__file__).parents[2]


def curve(times_s: dict[str, float], model: str = "ResNet-50", ranks: int = 2, delay_ms: int = 0) -> Curve:
    """A curve with the same times at every ratio; a bound of 1 s."""
    several = {name: [time_s] * len(RATIOS) for name, time_s in times_s.items()}
    return Curve(model, ranks, delay_ms, [1.0] * len(RATIOS), several)


def test_gains_are_over_the_default_and_over_the_best_of_all_sizes() -> None:
    found = gain_map.gains(curve({STOCK: 3.0, "ddp-gloo-1": 4.0, "ddp-gloo-5": 2.4, OURS: 1.5}))
    assert [values[0] for values in found] == pytest.approx([2.0, 1.6, 3.0])
    assert found.of_bound[0] == pytest.approx(1.5)
    assert all(len(values) == len(RATIOS) for values in found)


def test_the_best_size_may_be_the_default() -> None:
    found = gain_map.gains(curve({STOCK: 3.0, "ddp-gloo-1": 4.0, OURS: 3.3}))
    assert found.over_best[0] == found.over_default[0] == pytest.approx(3.0 / 3.3)


@pytest.mark.parametrize(("ratio", "most"), [(0.2, 1.2), (1.0, 2.0), (5.0, 1.2)])
def test_an_order_hides_the_shorter_of_the_two_at_most(ratio: float, most: float) -> None:
    assert gain_map.limit(ratio) == pytest.approx(most)


def test_gains_are_chosen_by_network_and_ratio() -> None:
    times = {STOCK: 3.0, OURS: 1.5}
    curves = [curve(times), curve(times, ranks=8), curve({STOCK: 6.0, OURS: 1.5}, "VGG-16")]
    assert gain_map.chosen(curves, "over_default", (0.2, 1.0), ranks=2, delay_ms=0) == [2.0, 2.0, 4.0, 4.0]
    assert gain_map.chosen(curves, "over_default", (1.0,), delay_ms=5) == []


def test_errors_are_of_the_gain_and_not_of_the_times() -> None:
    real = cell(**{STOCK: policy(4.0), f"{STOCK}-5": policy(3.0), OURS: policy(2.0)})
    slower = cell(**{STOCK: policy(8.0), f"{STOCK}-5": policy(4.0), OURS: policy(4.0)})
    other = cell(stock=policy(1.0))
    found = gain_map.errors([Point(real, 2, slower), Point(other, 2, other)])
    assert len(found) == 1 and found[0] == pytest.approx((0.0, 0.5))


def test_a_job_has_the_ratio_that_it_is_drawn_at() -> None:
    cells = gain_map.cells("ResNet-50", 4, 5)
    for ratio, each in zip(RATIOS, cells, strict=True):
        profile = each.wire
        assert profile is not None and each.cluster.workers == 4
        sent_s = profile.total_bytes * 8 * 2 * 3 / 4 / gain_map.RATE
        assert (profile.backward_s + profile.forward_s) / sent_s == pytest.approx(ratio)
    slow, fast = (lower_bound(gain_map.cells("ResNet-50", 4, delay)[0]) for delay in (20, 0))
    assert slow is not None and fast is not None and slow - fast == pytest.approx(0.040)


@pytest.fixture(scope="module")
def curves() -> list[Curve]:
    stored = kept.kept(ROOT / kept.RESULTS, "map", list[Curve])
    assert stored is not None
    return stored.data


def test_a_job_is_simulated_with_every_size_and_prophet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gain_map, "RATIOS", (1.0,))
    found = gain_map.simulated("ResNet-50", 2, 5)
    assert set(found.times_s) == {STOCK, OURS, *(f"{STOCK}-{mb}" for mb in gain_map.BUCKETS_MB)}
    over_default, over_best, possible = (float(values[0]) for values in gain_map.gains(found))
    assert 1.3 < over_best < over_default < possible < 1.8
    assert found.times_s[f"{STOCK}-1"][0] > found.times_s[f"{STOCK}-10"][0], "each of its messages waits for the delay"


def test_what_is_kept_is_whole_and_breaks_no_bound(curves: list[Curve]) -> None:
    assert {(each.model, each.ranks, each.delay_ms) for each in curves} == {
        (model, ranks, delay_ms)
        for model in gain_map.MODELS
        for ranks in gain_map.RANKS
        for delay_ms in gain_map.DELAYS_MS
    }
    for each in curves:
        assert all(np.all(np.array(times_s) >= np.array(each.bound_s)) for times_s in each.times_s.values())
        if not each.delay_ms:
            assert np.all(gain_map.gains(each).possible <= [gain_map.limit(ratio) for ratio in RATIOS])


def test_the_figure_is_drawn(curves: list[Curve], tmp_path: Path) -> None:
    gain_map.draw(curves, tmp_path / gain_map.FIGURE)
    assert (tmp_path / gain_map.FIGURE).read_bytes().startswith(b"\x89PNG")
