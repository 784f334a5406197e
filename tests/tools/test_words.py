"""Sentences with computed numbers."""

from __future__ import annotations

import pytest

from prophet_scheduler.lab.records import CellResult
from support.results import cell, policy
from tools.kept import Point
from tools.words import ahead, count, gains, over_bound, span, speedup, standing, without_prophet


def two() -> list[Point]:
    return [
        Point(cell(prophet=policy(1.0), stock=policy(2.0), p3=policy(0.9)), 2),
        Point(cell(prophet=policy(1.0), stock=policy(1.5), p3=policy(1.1)), 2),
    ]


def test_gains_of_cells_that_have_both() -> None:
    points = [*two(), Point(cell(prophet=policy(1.0)), 2)]
    assert gains(points, "prophet", "stock") == [1.0, 0.5]
    assert speedup(points[2].cell.times_s, "prophet", "stock") is None


@pytest.mark.parametrize(
    ("values", "said"), [([], "not measured"), ([0.12, 0.46, 0.3], "12% to 46%"), ([0.121, 0.119], "12%")]
)
def test_a_span_is_one_value_where_both_are_shown_alike(values: list[float], said: str) -> None:
    assert span(values) == said


def test_times_over_the_bound_of_cells_that_have_both() -> None:
    unbound = cell(prophet=policy(1.0)).model_copy(update={"lower_bound_s": None})
    points = [Point(cell(prophet=policy(0.9)), 2), Point(cell(stock=policy(1.0)), 2), Point(unbound, 2)]
    assert over_bound(points, "prophet") == pytest.approx([0.5])


def test_rows_are_counted() -> None:
    assert ahead(two(), "prophet", ["stock"]) == "in every row"
    assert ahead(two(), "prophet", ["stock", "p3"]) == "in 1 of 2 rows"
    assert (count(0, 3), count(0, 0)) == ("in no row", "in no row")


def test_who_is_ahead_in_a_cell() -> None:
    first: CellResult = two()[0].cell
    said = standing(first, "prophet", ["stock", "ddp-gloo"])
    assert said == "At 250mbit prophet is 2.00 as stock (times as fast); the fastest is p3, 11.1% ahead of it."
    assert standing(two()[1].cell, "prophet", ["stock"]).endswith("prophet is the fastest of all.")
    assert standing(first, "nobody", ["stock"]) == "At 250mbit there is nothing to compare nobody with."


def test_what_ran_without_prophet_has_no_agent() -> None:
    agent = {"cpu_share": 0.01, "plans": 1, "watchdog_releases": 0}
    both = cell(prophet=policy(agent=agent), p3=policy(agent=agent), stock=policy(), other=policy())
    assert without_prophet(both) == ["stock", "other"]
