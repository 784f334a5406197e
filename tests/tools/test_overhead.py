"""What being watched costs: from turns to the page. That the job runs is tried by `make overhead` itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from prophet.core.errors import UserError
from prophet.core.settings import Settings
from tools import kept, overhead
from tools.overhead import OverheadData, Turn, described, mean_s, page, read_turns, shares
from tools.overhead_job import VARIANTS, settings_of
from tools.provenance import Provenance


def turns() -> list[Turn]:
    """Two ranks and four cycles in which all takes a hundredth more, and the machine gets slower."""
    return [
        Turn(rank, cycle, variant, (1 + cycle) * (1.01 if variant == "all" else 1.0), 0.5)
        for rank in range(2)
        for cycle in range(4)
        for variant in VARIANTS
    ]


def test_a_turn_is_compared_with_that_of_its_own_cycle_and_rank() -> None:
    assert shares(turns(), "all", "iteration_s") == pytest.approx([0.01] * 8)
    assert shares(turns(), "status", "cpu_s") == [0.0] * 8
    assert described([0.01] * 8) == "+1.00% (0.00%)"
    assert described([0.0, 0.02, 0.04]) == "+2.00% (2.14%)"


def test_what_happens_once_a_second_counts_and_what_the_machine_does_besides_does_not() -> None:
    assert mean_s([1.0] * 49 + [50.0]) == 1.0
    assert mean_s([1.0] * 40 + [2.0] * 10) == pytest.approx(1.2, rel=0.02)
    assert mean_s([3.0]) == 3.0


def test_what_is_on_in_a_turn() -> None:
    base = Settings("prophet", status=True)
    told = {variant: settings_of(variant, base, Path("record"), 9000) for variant in VARIANTS}
    assert not told["nothing"].watched
    assert [variant for variant in VARIANTS if told[variant].status] == ["status", "all"]
    assert [variant for variant in VARIANTS if told[variant].record] == ["record", "all"]
    assert [variant for variant in VARIANTS if told[variant].metrics_port] == ["metrics", "all"]


def test_the_page(tmp_path: Path) -> None:
    measured = Provenance("2026-01-02", "abc1234", "a processor", 2)
    kept.keep(tmp_path, overhead.NAME, OverheadData, OverheadData(turns(), 5.0, 80, 0.5), measured)
    text = page(tmp_path)
    assert measured.line() in text and "4 cycles with turns of 5 s" in text
    assert "| all | +1.00% (0.00%) | +0.00% (0.00%) |" in text


def test_a_rank_that_left_nothing_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="rank 0 left nothing; its words are in"):
        read_turns(tmp_path)
