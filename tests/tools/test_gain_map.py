"""The map of gains: from times to gains, what no order can exceed, and one small job that is simulated here."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from prophet_scheduler.lab.results import lower_bound
from tools import gain_map, kept
from tools.figures import OURS, STOCK
from tools.gain_map import RATIOS, Curve

ROOT = Path(__file__).parents[2]


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
