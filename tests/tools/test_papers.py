"""The page of the papers' tables: that its configs have what tables and remarks ask for, and what remarks compute."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from prophet_scheduler.lab.config import load_experiment
from support.configs import REPLAY, written
from support.results import cell, policy
from tools import cells, papers
from tools.kept import Point, Study
from tools.paper_studies import STUDIES, PaperStudy
from tools.words import gains

CONFIGS = Path(__file__).parents[2] / "configs" / "papers"


def points_of(study: PaperStudy) -> list[Point]:
    """Every policy of the study's config, each a tenth slower than the one before; prophet and pace first."""
    points = []
    for place in load_experiment(CONFIGS / study.config).cells:
        names = sorted((shown.name for shown in place.policies), key=lambda name: name not in ("prophet", "pace"))
        times = {name: policy(1 + rank / 10, processor_utilisation=0.5) for rank, name in enumerate(names)}
        points.append(Point(cell(**times), place.cluster.workers))
    return points


@pytest.mark.parametrize("study", STUDIES, ids=lambda study: study.config)
def test_the_configs_have_what_tables_and_remarks_ask_for(study: PaperStudy) -> None:
    points = points_of(study)
    text = papers.section(study, Study({}, points))
    assert text.startswith(f"## {study.title}\n\n`configs/papers/{study.config}`.")
    assert text.count("\n|") == len(points) + 2
    assert "failed" not in text and "not measured" not in text and "unknown" not in text


def test_remarks_follow_the_numbers() -> None:
    (study,) = (study for study in STUDIES if study.config == "prophet-table2.yaml")
    points = points_of(study)
    assert "is at least as fast as ByteScheduler and P3 in every row" in study.remarks(points)
    slow = [*points[1:], Point(cell(prophet=policy(3.0), p3=policy(1.0), bytescheduler=policy(1.0)), 7)]
    assert f"in {len(points) - 1} of {len(points)} rows" in study.remarks(slow)


def test_a_study_is_simulated_and_kept_small(tmp_path: Path) -> None:
    data = cells.simulated(written(REPLAY, tmp_path), Console(file=io.StringIO()))
    (point,) = data.points
    assert point.workers == 2 and point.cell.ratios["prophet"] > 1.5
    assert all(shown.over_time is None for shown in point.cell.policies.values())
    assert gains(data.points, "prophet", "stock")[0] > 0.5
