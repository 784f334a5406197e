"""The page of blocks that adapt on real networks: what is counted, and what its config compares."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from prophet_scheduler.lab.config import load_experiment
from prophet_scheduler.lab.records import PolicyResult
from support.configs import REPLAY, written
from support.results import Session, cell, failed, policy
from tools import cells, real_blocks
from tools.real_blocks import error_s, said, standings

CONFIG = Path(__file__).parents[2] / real_blocks.CONFIG
TIMES = {"stock": 1.7, "prophet": 0.97, "fixed-128k": 1.5, "fixed-1m": 1.0, "ddp-gloo": 1.1, "mxnet-p3": 0.95}
POINT = cell(**{name: policy(seconds, repeats=[seconds]) for name, seconds in TIMES.items()})


def test_prophet_is_held_against_the_best_size_stock_and_the_fastest_other() -> None:
    (row,) = standings([POINT], [10])
    assert (row.setting, row.best, row.other, row.other_s, row.stock_s) == (
        "250mbit",
        "fixed-1m",
        "mxnet-p3",
        0.95,
        1.7,
    )
    assert row.ahead == pytest.approx(0.03)


def test_how_exactly_the_difference_is_known_follows_from_the_scatter() -> None:
    rng = np.random.default_rng(0)
    times_s = rng.normal(1.0, 0.1, (4000, 2, 10))
    p10, p90 = np.quantile(times_s, [0.1, 0.9])
    measured = policy(1.0, repeats=[1.0, 1.0], iteration_s={"median": 1.0, "p10": p10, "p90": p90})
    of_median_s = np.median(times_s.reshape(4000, 20), axis=1).std()
    assert error_s(measured, 10) == pytest.approx(of_median_s, rel=0.05)
    (row,) = standings([cell(**{"prophet": measured, "fixed-1m": measured})], [10])
    assert row.error == pytest.approx(of_median_s * 2**0.5, rel=0.05)
    assert row.ahead_words == "+0.0% ± 4.0%"
    every_s = rng.normal(1.0, 0.1, (2, 2, 400)).tolist()  # by repeat and worker; a worker's times are the other's, too
    kept = policy(1.0, iterations=[[tuple(worker) for worker in (repeat[0], repeat[0])] for repeat in every_s])
    assert error_s(kept, 0) == pytest.approx(0.1 / 796**0.5, rel=0.1), "of the mean of all but those at the start"


def test_where_it_is_behind_is_named() -> None:

    def steady(median_s: float) -> PolicyResult:
        times = {"median": median_s, "p10": median_s - 0.01, "p90": median_s + 0.01}
        return policy(iteration_s=times, repeats=[median_s])

    behind = cell(**{"stock": steady(0.9), "prophet": steady(1.0), "fixed-2m": steady(0.95)})
    words = said(standings([POINT, behind], [10, 10]))
    assert "more than 2% behind the best of the fixed sizes in 1 (all: -5.3% to" in words
    assert (
        "by more than two standard errors in 1 of them, behind stock in 1, and behind another engine or scheduler in 1."
        in words
    )
    scattered = cell(**{"prophet": policy(1.0, repeats=[1.0]), "fixed-2m": policy(0.95, repeats=[0.95])})
    assert "standard errors in 0 of them" in said(standings([scattered], [10]))
    assert words.splitlines()[2:] == [
        "- 250mbit: -5.3% ± 0.5% against fixed-2m",
        "- 250mbit: takes 2.1% longer than mxnet-p3",
    ]


def test_a_cell_in_which_prophet_failed_is_left_out() -> None:
    assert standings([cell(**{"prophet": failed("hung"), "fixed-1m": policy(1.0)})], [10]) == []
    assert said([]) == "Nothing was measured in which Prophet and a fixed size both ran."


def test_the_config_compares_the_sizes_and_the_peers_in_every_cell() -> None:
    experiment = load_experiment(CONFIG)
    assert len(experiment.cells) == 10
    for place in experiment.cells:
        names = [shown.name for shown in place.policies]
        assert {"stock", "prophet", "ddp-gloo", "mxnet-kvstore", "mxnet-p3"} <= set(names)
        assert sum(name.startswith("fixed-") for name in names) == 6


def test_a_run_is_kept_and_makes_the_page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    session = Session(POINT)
    monkeypatch.setattr(cells, "run_session", session.run)
    sizes = [
        {"name": name, "base": "prophet", "env": {"PROPHET_PARTITION_BYTES": size}}
        for name, size in (("fixed-128k", "131072"), ("fixed-1m", "1048576"))
    ]
    raw = {**REPLAY, "policies": ["stock", "prophet", *sizes, "ddp-gloo", "mxnet-p3"]}
    file = written({**raw, "sweep": [{"cluster": {"bandwidth": "250mbit"}}]}, tmp_path)
    assert real_blocks.write_page(file, tmp_path / "out", tmp_path, None) == 0
    text = (tmp_path / real_blocks.PAGE).read_text(encoding="utf-8")
    assert text == real_blocks.page(tmp_path)
    assert "| 250mbit | 0.600 | 0.970 | 1.62 | 1.000 (fixed-1m) | +3.0% ± 8.0% | 1.700 | 0.950 (mxnet-p3) |" in text
