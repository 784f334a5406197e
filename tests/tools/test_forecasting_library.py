"""PyPI's `prophet`, a forecasting library, beside this one: installed in either order, and each removed again."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tools.release import Environment, outcome, run

ROOT = Path(__file__).parents[2]
THEIRS, OURS = "prophet", "prophet-scheduler"
FORECASTS = """
import pandas
from prophet import Prophet
frame = pandas.DataFrame({"ds": pandas.date_range("2026-01-01", periods=60), "y": range(60)})
later = Prophet(weekly_seasonality=False).fit(frame).predict(pandas.DataFrame({"ds": ["2026-04-01"]}))
print(round(float(later.yhat.iloc[0])))
"""
SCHEDULES = ("plan", "resnet50", "--bandwidth", "1gbit")


class Both:
    """An environment that has what both need, and a wheel of ours."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.environment = Environment(sys.executable, place / "both")
        build = ("wheel", "--quiet", "--no-deps", "--wheel-dir", str(place), str(ROOT))
        run(sys.executable, "-m", "pip", *build)
        (self.wheel,) = place.glob("prophet_scheduler-*.whl")
        self.environment.pip("install", THEIRS, str(self.wheel))
        self.environment.pip("uninstall", "--yes", THEIRS, OURS)

    def install(self, name: str) -> None:
        self.environment.pip("install", "--no-deps", str(self.wheel) if name == OURS else name)

    def works(self, name: str) -> bool:
        python = self.environment.program("python")
        if name == THEIRS:
            return outcome(python, "-c", FORECASTS, cwd=self.place).stdout.strip() == "90"
        done = outcome(python, "-m", "prophet_scheduler.cli.main", *SCHEDULES, cwd=self.place)
        return done.returncode == 0 and "resnet50" in done.stdout


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Both:
    return Both(tmp_path_factory.mktemp("both"))


@pytest.mark.parametrize(("first", "second"), [(THEIRS, OURS), (OURS, THEIRS)])
def test_each_works_beside_the_other_and_without_it(both: Both, first: str, second: str) -> None:
    both.install(first)
    both.install(second)
    assert both.works(THEIRS) and both.works(OURS)
    both.environment.pip("uninstall", "--yes", first)
    assert both.works(second) and not both.works(first)
    both.environment.pip("uninstall", "--yes", second)
