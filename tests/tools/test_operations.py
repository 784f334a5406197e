"""The page about all-reduces, from made-up ones, and that the simulator's numbers are those that were kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from prophet_scheduler.lab import simulated_ddp
from tools import kept, operations
from tools.operations import AT_ONCE, ISSUED, LARGE, SIZES, SMALL, OnWay, Way
from tools.provenance import Provenance

ROOT = Path(__file__).parents[2]


def on(way: Way, small_s: float, large_s: float, issued_s: float = 0.001) -> OnWay:
    bare = [(size, at_once, large_s if size == LARGE else small_s) for size in SIZES for at_once in AT_ONCE]
    return OnWay(way, bare, [(size, issued_s) for size in ISSUED], 9e9, 3e9, 8e9)


MADE_UP = [on(Way(2), 0.0004, 0.0088), on(Way(2, None, 0.005), 0.0404, 0.17), on(Way(4, 1e9), 0.003, 0.2)]


def test_the_simulators_numbers_follow_from_operations_alone() -> None:
    so = operations.follows(MADE_UP)
    assert so.ways_a_message == pytest.approx(2.0), "40 ms are two messages of two ways of 10 ms each"
    assert so.message_s == pytest.approx(0.0001), "two ranks send two messages each"
    assert so.moved_rate == pytest.approx(2 * LARGE / 0.0084)
    assert so.issue_s == pytest.approx(0.0006)
    assert (so.copied_rate, so.renewed_rate, so.updated_rate) == (9e9, 3e9, 8e9)


def test_the_page_has_a_row_for_each_way_and_number_at_once(tmp_path: Path) -> None:
    measured = Provenance("2026-01-02", "abc1234", "a processor", 2)
    kept.keep(tmp_path, operations.NAME, list[OnWay], MADE_UP, measured)
    page = operations.page(tmp_path)
    assert "Measured on 2026-01-02 at commit abc1234 on a processor, 2 cores." in page
    assert "| 2 | not shaped | 5ms | 1 | 40.40 | 40.40 | 40.40 | 170.00 |" in page
    assert "| 4 | 1gbit | - | Prophet | 1.00 | 1.00 | 1.00 | - |" in page
    assert "| processors' time for a message | 0.10 ms |" in page


def test_the_simulator_has_what_was_measured() -> None:
    stored = kept.kept(ROOT / kept.RESULTS, operations.NAME, list[OnWay])
    assert stored is not None
    so = operations.follows(stored[1])
    assert so.ways_a_message == pytest.approx(simulated_ddp.WAYS_A_MESSAGE, rel=0.05)
    assert so.message_s == pytest.approx(simulated_ddp.MESSAGE_S, rel=0.02)
    assert so.moved_rate == pytest.approx(simulated_ddp.MOVED_RATE, rel=0.02)
    assert so.issue_s == pytest.approx(simulated_ddp.ISSUE_S, rel=0.05)
    assert so.copied_rate == pytest.approx(simulated_ddp.COPIED_RATE, rel=0.02)
    assert so.renewed_rate == pytest.approx(simulated_ddp.RENEWED_RATE, rel=0.02)
    assert so.updated_rate == pytest.approx(simulated_ddp.UPDATED_RATE, rel=0.02)
    with pytest.raises(KeyError):
        stored[1][0].bare(SMALL, 3)
