"""The page of real results: what it says of cells, and when a config is run again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from prophet_scheduler.lab.config import load_experiment
from prophet_scheduler.lab.iterations import MEDIANS
from prophet_scheduler.lab.records import Results, write_results
from prophet_scheduler.models.profiles import resnet50
from support.configs import REPLAY, changed, written
from support.results import cell, failed, policy
from tools import kept, real_tables
from tools import results as tool
from tools.kept import Point, Study
from tools.provenance import Provenance
from tools.real_studies import STUDIES, RealStudy

PROVENANCE = Provenance("2026-01-02", "abc1234", "a processor", 2)


def rows(text: str) -> list[list[str]]:
    return [[part.strip() for part in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]


def test_a_cell_is_a_table_that_names_its_narrow_link_and_what_failed() -> None:
    shown = cell(prophet=policy(gradient={"wait_s": 0.1, "total_s": 0.2}, accuracy=0.97), p3=failed("p3 is not here"))
    text = real_tables.all_cells([Point(shown, 2)])
    assert text.startswith("250mbit; narrow link: worker uplink; lower bound 0.600 s")
    _, _, ours, other = rows(text)
    assert ours == ["prophet", "0.900", "0.800-1.000", "100.0", "1.90", "1.50", "200", "97.0%"]
    assert other[:2] == ["p3", "failed: p3 is not here"] and len(other) == len(ours)


def test_rates_of_one_worker_stand_beside_the_papers() -> None:
    tables = real_tables.beside_paper(
        ["1 Gbit/s"], {"p3": [25.16], "prophet": [None]}, {"p3": "p3-paper", "prophet": "prophet"}, ["p3"]
    )
    shown = rows(tables([Point(cell(**{"p3-paper": policy(), "prophet": policy(), "p3": failed("hung")}), 2)]))
    assert shown[0] == [
        "setting",
        "narrow link",
        "p3, paper",
        "p3, here",
        "prophet, paper",
        "prophet, here",
        "p3 with Prophet's partitions, here",
    ]
    assert shown[2] == ["1 Gbit/s", "worker uplink", "25.16", "50.0", "-", "50.0", "failed"]


def test_real_and_simulated_stand_side_by_side() -> None:
    real = cell(prophet=policy(), stock=policy())
    simulated = cell(prophet=policy(samples_per_s=120.0), stock=policy(samples_per_s=80.0))
    shown = rows(real_tables.worker_counts([Point(real, 2, simulated)]))
    assert shown[2] == ["2", "worker uplink", "50.0", "60.0", "50.0", "40.0"]


def test_recorded_patterns_have_their_steps() -> None:
    (pattern,) = rows(real_tables.patterns([resnet50()]))[2:]
    assert pattern[1:3] == ["161", "102.2"] and pattern[5] == "13" and pattern[6].startswith("{0-")


def test_a_part_that_was_measured_says_so_and_what_prophet_costs(tmp_path: Path) -> None:
    agent = {"cpu_share": 0.004, "plans": 2, "watchdog_releases": 0}
    shown = cell(prophet=policy(agent=agent, start_s=6.9), stock=policy(1.8, start_s=10.4))
    kept.keep(tmp_path, "real-peers", Study, Study({}, [Point(shown, 2)]), PROVENANCE)
    text = tool.page(tmp_path)
    assert "## Every scheduler that runs here\n\n`configs/peers.yaml`. Interleaved runs." in text
    assert text.count(MEDIANS) == 1, "which is all that was kept"
    assert PROVENANCE.line() in text
    assert "At 250mbit prophet is 2.00 as stock (times as fast); prophet is the fastest of all." in text
    assert "![iteration-times](real-peers-iteration-times.png)" in text
    assert ["250mbit", "0.40%", "6.9", "10.4"] in rows(text)
    assert text.count("Not measured yet: `make results`.") == len(STUDIES) - 1


@pytest.mark.parametrize("study", STUDIES, ids=lambda study: study.config)
def test_the_configs_of_the_page_have_what_its_tables_and_remarks_ask_for(study: RealStudy) -> None:
    experiment = load_experiment(Path(__file__).parents[2] / "configs" / study.config)
    points = [
        Point(
            cell(**{contender.name: policy() for contender in place.policies}).model_copy(
                update={"setting": dict(place.setting)}
            ),
            place.cluster.workers,
            cell(**{contender.name: policy() for contender in place.policies}) if study.simulated else None,
        )
        for place in experiment.cells
    ]
    assert rows(study.tables(points))
    assert "not measured" not in study.remarks(points) and "unknown" not in study.remarks(points)


def test_results_of_the_same_config_are_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[str] = []

    def run(experiment: Any, folder: Path) -> int:
        runs.append(experiment.name)
        folder.mkdir(parents=True, exist_ok=True)
        cells = [cell(prophet=policy()) for _ in experiment.cells]
        write_results(Results(schema=1, config=dict(experiment.source), cells=cells), folder / "results.json")
        (folder / "iteration-times.png").write_text("a figure")
        return 0

    monkeypatch.setattr(tool, "run_session", run)
    monkeypatch.setattr(tool, "CONFIGS", tmp_path)
    study = RealStudy("small.yaml", "Small", "", real_tables.all_cells, ("iteration-times.png",))
    written(REPLAY, tmp_path)
    for _ in range(2):
        tool.measure(study, tmp_path, tmp_path / "out", fresh=False)
    assert runs == ["small"]
    shown = kept.kept(tmp_path, "real-small", Study)
    assert shown is not None and shown[1].points[0].workers == 2
    assert (tmp_path / "real-small-iteration-times.png").read_text() == "a figure"
    written(changed(REPLAY, "job.iterations", 9), tmp_path)
    tool.measure(study, tmp_path, tmp_path / "out", fresh=False)
    tool.measure(study, tmp_path, tmp_path / "out", fresh=True)
    assert runs == ["small"] * 3
