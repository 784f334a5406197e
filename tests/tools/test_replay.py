"""The page of replays, from results that nobody ran, and that a run keeps them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from prophet_scheduler.lab.config import load_experiment
from prophet_scheduler.lab.records import Results, write_results
from support.results import cell, failed, policy
from tools import kept, replay, replay_page
from tools.kept import Point, Study
from tools.provenance import Provenance

PROVENANCE = Provenance("2026-01-02", "abc1234", "a processor", 2)
SAME = {"same_weights_as_stock": True}


def test_the_page_has_what_was_measured_and_what_it_means(tmp_path: Path) -> None:
    agent = {"cpu_share": 0.004, "plans": 2, "watchdog_releases": 0}
    point = Point(cell(stock=policy(1.8), prophet=policy(agent=agent, start_s=6.9, **SAME), p3=policy(1.0, **SAME)), 2)
    kept.keep(tmp_path, "replay-resnet50", Study, Study({}, [point]), PROVENANCE)
    text = replay_page.page(tmp_path)
    assert "| prophet | 0.900 |" in text and PROVENANCE.line() in text
    assert "2.00 as stock, 1.11 as p3 (times as fast); prophet is the fastest of all." in text
    assert "Final weights of all policies were those of stock BytePS, bit for bit." in text
    assert "| 250mbit | 0.40% | 6.9 | - |" in text
    assert "Not measured yet: `python -m tools.replay --sweep`." in text


def test_weights_that_were_not_compared_are_named() -> None:
    points = [Point(cell(stock=policy(), prophet=policy(**SAME), p3=policy(), fifo=failed("hung")), 2)]
    assert replay_page.weights(points) == "Final weights were not shown to be those of stock BytePS under fifo, p3."


def test_a_sweep_is_a_grid_with_its_best_against_prophet() -> None:
    times = {"1MiB-512KiB": 1.1, "256KiB-512KiB": 0.99, "1MiB-1MiB": 1.3}
    swept = cell(prophet=policy(0.9), **{f"bytescheduler-{name}": policy(time) for name, time in times.items()})
    assert replay_page.grid(swept).splitlines()[0::1] == [
        "| credit | 512KiB | 1MiB |",
        "|---|---|---|",
        "| 256KiB | 0.990 | - |",
        "| 1MiB | 1.100 | 1.300 |",
    ]
    assert (
        "took 0.900 s in the same run; the best setting, bytescheduler-256KiB-512KiB, took 0.990 s"
        in replay_page.best(swept)
    )
    assert "Prophet is +10.0% faster" in replay_page.best(swept)


def test_a_run_is_kept_with_its_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(experiment: Any, folder: Path) -> int:
        folder.mkdir(parents=True)
        cells = [cell(**{contender.name: policy() for contender in place.policies}) for place in experiment.cells]
        write_results(Results(schema=1, config=dict(experiment.source), cells=cells), folder / "results.json")
        for name in replay.FIGURES:
            (folder / name).write_text(name)
        return 0

    monkeypatch.setattr(replay, "run_session", run)
    monkeypatch.chdir(Path(__file__).parents[2])
    for arguments in ([], ["--sweep", "--repeats", "1"]):
        assert replay.main(["--out", str(tmp_path / "out"), "--results", str(tmp_path), *arguments]) == 0
    assert (tmp_path / "replay-resnet50-transfers.png").read_text() == "transfers-0.png"
    text = (tmp_path / "replay.md").read_text()
    assert text == replay_page.page(tmp_path)
    experiment = load_experiment(Path("configs/sweep-bytescheduler.yaml"))
    assert text.count("| 0.900 | 0.900 | 0.900 | 0.900 | 0.900 |") == 5, "five credits by five partition sizes"
    assert len(experiment.cells[0].policies) == 26


def test_rates_have_prophet_beside_the_bound_and_the_best_other(tmp_path: Path) -> None:
    point = Point(cell(stock=policy(1.8), p3=policy(1.0), prophet=policy(0.9), fifo=failed("hung")), 2)
    kept.keep(tmp_path, "validation", Study, Study({}, [point]), PROVENANCE)
    assert "| 250mbit | 1.800 | 1.000 | 0.900 | failed | 0.600 | 1.50 | -10.0% |" in replay_page.page(tmp_path)
