"""Measurements: their options, what is kept of one, and parts that can be tried without a quiet machine."""

from __future__ import annotations

import typing
from pathlib import Path

import pytest

from tools import kept, measure


def measured(out: Path, results: Path, *, starts: int = 5, rate: str = "fast") -> list[str]:
    return [rate] * starts


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "function_of", lambda name: measured)


@pytest.mark.usefixtures("made_up")
def test_what_is_measured_is_kept(tmp_path: Path) -> None:
    assert measure.main(["bench", "starts=2", "rate=slow", "--results", str(tmp_path)]) == 0
    stored = kept.kept(tmp_path, "bench", list[str])
    assert stored is not None and stored.data == ["slow", "slow"]


@pytest.mark.usefixtures("made_up")
@pytest.mark.parametrize(
    ("option", "line"),
    [("seconds=3", "its options are starts, rate, as KEY=VALUE"), ("starts=few", "invalid literal for int()")],
)
def test_a_wrong_option_is_one_line(option: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert measure.main(["bench", option]) == 2
    error = capsys.readouterr().err
    assert f"{option}: {line}" in error and error.count("\n") == 1


@pytest.mark.parametrize("name", measure.NAMES)
def test_every_measurement_says_what_it_keeps(name: str) -> None:
    function = measure.function_of(name)
    assert typing.get_type_hints(function)["return"]
    assert measure.options_of(function, []) == {}
