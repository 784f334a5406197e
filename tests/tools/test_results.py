"""The page of real results: what it says of cells, and when a config is run again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from prophet.lab.config import load_experiment
from prophet.models.profiles import resnet50
from support.configs import REPLAY, changed, written
from tools import results as tool

TIMES = {"median": 0.9, "p10": 0.8, "p90": 1.0}


def policy(**more: Any) -> dict[str, Any]:
    return {"iteration_s": TIMES, "samples_per_s": 100.0, **more}


def cell(**policies: dict[str, Any]) -> dict[str, Any]:
    return {
        "setting": {"bandwidth": 250e6},
        "narrow_link": "worker uplink",
        "lower_bound_s": 0.6,
        "policies": policies,
        "ratios": {"prophet": 1.9},
        "workers": 2,
    }


def rows(text: str) -> list[list[str]]:
    return [[part.strip() for part in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]


def test_a_cell_is_a_table_that_names_its_narrow_link_and_what_failed() -> None:
    text = tool.all_cells(
        [cell(prophet=policy(gradient={"wait_s": 0.1, "total_s": 0.2}, accuracy=0.97), p3={"error": "p3 is not here"})]
    )
    assert text.startswith("250mbit; narrow link: worker uplink; lower bound 0.600 s")
    _, _, ours, failed = rows(text)
    assert ours == ["prophet", "0.900", "0.800-1.000", "100.0", "1.90", "1.50", "200", "97.0%"]
    assert failed[:2] == ["p3", "failed: p3 is not here"] and len(failed) == len(ours)


def test_rates_of_one_worker_stand_beside_the_papers() -> None:
    tables = tool.beside_paper(
        ["1 Gbit/s"], {"p3": [25.16], "prophet": [None]}, {"p3": "p3-paper", "prophet": "prophet"}, ["p3"]
    )
    found = rows(tables([cell(**{"p3-paper": policy(), "prophet": policy(), "p3": {"error": "hung"}})]))
    assert found[0] == [
        "setting",
        "narrow link",
        "p3, paper",
        "p3, here",
        "prophet, paper",
        "prophet, here",
        "p3 with Prophet's partitions, here",
    ]
    assert found[2] == ["1 Gbit/s", "worker uplink", "25.16", "50.0", "-", "50.0", "failed"]


def test_real_and_simulated_stand_side_by_side() -> None:
    real = cell(prophet=policy(), stock=policy())
    simulated = cell(prophet=policy(samples_per_s=120.0), stock=policy(samples_per_s=80.0))
    assert rows(tool.worker_counts([real, simulated]))[2] == ["2", "worker uplink", "50.0", "60.0", "50.0", "40.0"]


def test_the_page_has_every_study_and_what_prophet_costs() -> None:
    agent = {"cpu_share": 0.004, "plans": 2}
    study = tool.Study(
        "peers.yaml", "Peers", "All of them.", tool.all_cells, ("iteration-times.png",), remarks="Prophet is ahead."
    )
    found = [(study, [cell(prophet=policy(agent=agent, start_s=6.9), stock=policy(start_s=10.4))])]
    text = tool.page(found, lambda study, name: f"fig-{name}", [resnet50()])
    assert "## Peers" in text and "![iteration-times](fig-iteration-times.png)" in text
    assert ["250mbit", "0.40%", "6.9", "10.4"] in rows(text)
    assert "Prophet is ahead." in text
    assert "Left out when this page was made: `configs/train-resnet.yaml`" in text
    pattern = next(row for row in rows(text) if row[0] == "`resnet50`")
    assert pattern[1:3] == ["161", "102.2"] and pattern[5] == "13" and pattern[6].startswith("{0-")


@pytest.mark.parametrize("study", tool.STUDIES, ids=lambda study: study.config)
def test_the_configs_of_the_page_have_what_its_tables_ask_for(study: tool.Study) -> None:
    experiment = load_experiment(Path(__file__).parents[2] / "configs" / study.config)
    made = [
        {
            **cell(**{one.name: policy() for one in point.policies}),
            "workers": point.cluster.workers,
            "setting": dict(point.setting),
        }
        for point in experiment.cells
    ]
    assert rows(study.tables([*made, *made] if study.simulated else made))


def test_results_of_the_same_config_are_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[str] = []

    def run(experiment: Any, folder: Path) -> int:
        runs.append(experiment.name)
        folder.mkdir(parents=True, exist_ok=True)
        cells = [cell(prophet=policy()) for _ in experiment.cells]
        (folder / "results.json").write_text(json.dumps({"config": experiment.source, "cells": cells}))
        return 0

    monkeypatch.setattr(tool, "run_session", run)
    written(REPLAY, tmp_path)
    study = tool.Study("small.yaml", "Small", "", tool.all_cells)
    for _ in range(2):
        (found,) = tool.results_of(study, tmp_path, tmp_path / "out", fresh=False)
        assert found["workers"] == 2
    assert runs == ["small"]
    written(changed(REPLAY, "job.iterations", 9), tmp_path)
    tool.results_of(study, tmp_path, tmp_path / "out", fresh=False)
    tool.results_of(study, tmp_path, tmp_path / "out", fresh=True)
    assert runs == ["small"] * 3
