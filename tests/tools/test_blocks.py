"""The page of blocks that adapt: what is counted, and that its config can be simulated."""

from __future__ import annotations

from pathlib import Path

import pytest

from prophet_scheduler.lab.config import load_experiment
from prophet_scheduler.lab.results import lower_bound
from prophet_scheduler.lab.simulated import prepare
from support.configs import REPLAY, changed, written
from support.results import cell, policy
from tools import blocks
from tools.blocks import any_blocks_s, gains

CONFIG = Path(__file__).parents[2] / blocks.CONFIG
SETTING = {"profile": "resnet50", "bandwidth": 5e9}


def test_prophet_is_held_against_the_best_size_and_the_best_other() -> None:
    times = {"stock": 2.0, "prophet": 0.97, "fixed-128k": 1.5, "fixed-1m": 1.0, "p3": 0.95}
    shown = cell(**{name: policy(seconds) for name, seconds in times.items()}).model_copy(update={"setting": SETTING})
    (row,) = gains([shown.model_copy(update={"lower_bound_s": 0.9})])
    assert (row.setting, row.best_fixed, row.best_other) == ("resnet50 at 5 Gbit/s", "fixed-1m", "p3")
    assert row.over_fixed == pytest.approx(0.03)
    assert row.over_other == pytest.approx(1 - 0.97 / 0.95)
    assert row.from_bound["stock"] == pytest.approx(2.0 / 0.9)
    assert row.any_blocks is None and row.best_possible is None


def test_prophet_is_held_against_what_any_blocks_could_come_to() -> None:
    times = {"stock": 2.0, "prophet": 0.97, "fixed-1m": 1.0}
    shown = cell(**{name: policy(seconds) for name, seconds in times.items()}).model_copy(
        update={"setting": SETTING, "lower_bound_s": 0.9}
    )
    (row,) = gains([shown], [0.96])
    assert row.any_blocks == pytest.approx(0.96 / 0.9)
    assert row.best_possible == pytest.approx(0.04)


def test_what_no_cut_goes_below_is_above_the_bound_by_messages() -> None:
    cells = load_experiment(CONFIG).cells
    for shown in cells:
        bound_s, least_s = lower_bound(shown), any_blocks_s(shown)
        assert bound_s is not None and least_s is not None
        assert 1.002 < least_s / bound_s < 1.06


def test_a_policy_that_failed_is_left_out() -> None:
    shown = cell(prophet=policy(1.0), stock=policy(2.0)).model_copy(update={"setting": SETTING, "lower_bound_s": 0.9})
    assert gains([shown]) == []


def test_the_config_has_the_models_the_networks_and_the_sizes() -> None:
    experiment = load_experiment(CONFIG)
    assert len(experiment.cells) == 18
    first = experiment.cells[0]
    fixed = [shown for shown in first.policies if shown.name.startswith(blocks.FIXED)]
    assert [prepare(first, shown).options.adapts for shown in fixed] == [False] * 6
    sizes = [max(prepare(first, shown).job.sizes) for shown in fixed]
    assert sizes == [128 << 10, 256 << 10, 512 << 10, 1 << 20, 2 << 20, 4_096_000]
    adapts = next(shown for shown in first.policies if shown.name == blocks.ADAPTS)
    assert prepare(first, adapts).options.adapts


def test_a_small_run_makes_the_page(tmp_path: Path) -> None:
    raw = changed(REPLAY, "policies", ["stock", "prophet", {"name": "fixed-64k", "base": "prophet"}])
    raw["policies"][2]["env"] = {"PROPHET_PARTITION_BYTES": "65536"}
    raw = {**raw, "repeats": 1, "sweep": [{"job": {"profile": "resnet50"}, "cluster": {"bandwidth": "250mbit"}}]}
    assert blocks.write_page(written(raw, tmp_path), tmp_path) == 0
    text = (tmp_path / blocks.PAGE).read_text()
    assert text == blocks.page(tmp_path)
    assert "| resnet50 at 0.25 Gbit/s |" in text and "**Of 1 cells Prophet is" in text
    assert "No cut could be more than" in text
