"""What lacking a part costs, with made-up times, and what the configs compare."""

from __future__ import annotations

from pathlib import Path

import pytest

from prophet_scheduler.lab.config import load_experiment
from prophet_scheduler.lab.simulated import prepare_experiment
from support.results import cell, failed, policy
from tools import ablation
from tools.ablation import costs, said, times

ROOT = Path(__file__).parents[2]


def test_each_contender_is_held_against_the_whole_in_the_same_cell() -> None:
    cells = [
        cell(**{"prophet": policy(1.0), "p3": policy(1.5), "one-1m": policy(1.1), "one-2m": policy(1.0)}),
        cell(**{"prophet": policy(2.0), "p3": policy(2.0), "one-1m": policy(2.0), "one-2m": policy(2.5)}),
        cell(**{"prophet": failed("hung"), "p3": policy(9.0)}),
    ]
    found = costs(cells)
    assert found == {
        "p3": pytest.approx([0.5, 0.0]),
        "one-1m": pytest.approx([0.1, 0.0]),
        "one-2m": pytest.approx([0.0, 0.25]),
    }
    words = said(found)
    assert "`p3`: from +0.0% to +50.0% of an iteration; more than 1% in 1 of 2 cells." in words
    assert words.endswith("The one size that costs the least at worst costs +10.0% there.")
    assert said({}) == "Nothing was measured beside the whole."


def test_times_are_multiples_of_the_bound_and_what_failed_or_did_not_run_is_said() -> None:
    lines = times([cell(prophet=policy(0.9), p3=failed("hung")), cell(prophet=policy(0.6))]).splitlines()
    assert lines[2:] == ["| 250mbit | 1.500 | failed |", "| 250mbit | 1.000 | - |"]


@pytest.mark.parametrize(("config", "cells"), [(ablation.SIMULATED_CONFIG, 6), (ablation.CONFIG, 6)])
def test_both_configs_have_the_same_contenders_on_six_networks(config: Path, cells: int) -> None:
    experiment = load_experiment(ROOT / config)
    assert len(experiment.cells) == cells
    for place in experiment.cells:
        names = [contender.name for contender in place.policies]
        assert names[:3] == ["stock", "prophet", "order-alone"]
        assert sum(name.startswith(ablation.ONE_SIZE) for name in names) == 6
        assert names[-3:] == ["no-fusion", "prophet-paper", "p3"]
    if config == ablation.SIMULATED_CONFIG:
        assert prepare_experiment(experiment), "all of it can be simulated"


def test_a_page_of_which_nothing_is_kept_says_how_to_measure(tmp_path: Path) -> None:
    text = ablation.page(tmp_path)
    assert "Not measured yet: `make ablation`." in text
    assert "Not measured yet: `make real-ablation`." in text
