"""Times of iterations: what is kept of them comes back, what is counted, and the columns of tables."""

from __future__ import annotations

import base64
import zlib

import pytest

from prophet_scheduler.lab.iterations import (
    AT_REST,
    LEAST_AT_REST,
    MEANS,
    MEDIANS,
    STARTING,
    Times,
    basis,
    packed,
    rests_from,
    rounded,
    time_columns,
    times_of,
    unpacked,
)

OLD = Times(median=2.0, p10=1.5, p90=2.5)
SHORT = Times(median=1.0, p10=0.9, p90=1.1, mean=1.05, at_rest=0.95)
LONG = Times(median=1.0, p10=0.9, p90=1.1, mean=1.25, first_50=1.5, first_100=1.375, at_rest=0.875)


def test_packed_times_round_trip() -> None:
    times_s = [0.9 + place % 7 * 1e-4 for place in range(1000)]
    text = packed(times_s)
    assert unpacked(text) == pytest.approx(times_s, rel=1e-7)
    assert unpacked(text) == rounded(times_s)
    assert packed(unpacked(text)) == text
    assert len(text) < 1000
    assert unpacked(packed([])) == ()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no base64!",
        "\u00e9",
        base64.b64encode(b"no zlib").decode(),
        base64.b64encode(zlib.compress(b"\0" * 8)[:-1]).decode(),
        base64.b64encode(zlib.compress(b"\0" * 7)).decode(),
        base64.b64encode(zlib.compress(b"\0" * (1 << 27))).decode(),
        packed([1.0, -1.0]),
        packed([float("nan")]),
    ],
)
def test_bad_packed_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"it (is|has) |ASCII"):
        unpacked(text)


def test_mean_excludes_starting_iterations() -> None:
    assert STARTING == 2
    times = times_of([([5.0, 3.0, 1.0, 1.0, 4.0], 3), ([5.0, 3.0, 1.0, 1.0, 1.0], 3)])
    assert times.mean == times.headline == pytest.approx(1.5)
    assert times.median == 1.0, "which says nothing of the one that stalled"
    assert (times.p10, times.p90) == pytest.approx((1.0, 2.5))
    assert times.at_rest == times.rest == pytest.approx(7 / 4)
    assert times_of([([5.0, 3.0], 1)]).mean == 3.0, "as many as there are"


def test_first_50_and_100_need_long_runs() -> None:
    long, short = [3.0] * 10 + [2.0] * 40 + [1.0] * 50, [2.0] * 50
    times = times_of([(long, 50)])
    assert (times.first_50, times.first_100) == pytest.approx((2.2, 1.6))
    times = times_of([(long, 50), (short, 25)])
    assert times.first_50 == pytest.approx(2.1)
    assert times.first_100 is None


def test_at_rest_since_last_change_or_last_half() -> None:
    starts_s = [float(place) for place in range(20)]
    assert rests_from(starts_s, 6.5) == 7
    assert rests_from(starts_s, 7.0) == 7, "the one that began with it"
    assert rests_from(starts_s, None) == 10
    assert rests_from(starts_s, 20.0 - LEAST_AT_REST) == 15
    assert rests_from(starts_s, 20.1 - LEAST_AT_REST) == 10, "too few have come since"


def test_empty_columns_are_left_out() -> None:
    assert time_columns([LONG, None]) == (
        ["mean (s)", "first 50", "first 100", "at rest", "median", "p10-p90"],
        [["1.250", "1.500", "1.375", "0.875", "1.000", "0.900-1.100"], ["-"] * 6],
    )
    headings, rows = time_columns([SHORT, OLD], "{:.1f}".format, unit="")
    assert headings == ["mean", "at rest", "median", "p10-p90"]
    assert rows == [["1.1", "0.9", "1.0", "0.9-1.1"], ["-", "-", "2.0", "1.5-2.5"]]
    assert time_columns([OLD]) == (["median (s)", "p10-p90"], [["2.000", "1.500-2.500"]])


def test_basis_names_mean_or_median() -> None:
    assert basis([SHORT, LONG]) == MEANS
    assert basis([LONG], at_rest=True) == AT_REST
    assert basis([OLD, OLD], at_rest=True) == MEDIANS
    assert basis([OLD, LONG]).startswith(MEANS) and "Where there is no mean it is a median" in basis([OLD, LONG])
