"""What being watched costs: from turns to the page. That the job runs is tried by `make overhead` itself."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.settings import Settings
from tools import kept, overhead
from tools.overhead import Call, OverheadData, Turn, counted, described, mean_s, more, page, read_ranks, shares
from tools.overhead_job import ANSWERING, VARIANTS, TimedCalls, clocked, is_asked, settings_of, threads_s
from tools.provenance import Provenance


def turns() -> list[Turn]:
    """Two ranks and four cycles in which all takes a hundredth more, and the machine gets slower. Prophet's threads
    take a thousandth more of an iteration for it on the first rank, and two on the other; of that one watches.
    """
    return [
        Turn(
            rank,
            cycle,
            variant,
            (1 + cycle) * (1.01 if variant == "all" else 1.0),
            0.5,
            (1 + cycle) * (0.02 + (0.001 * (1 + rank) if variant == "all" else 0.0)),
            (1 + cycle) * (0.001 if variant == "all" else 0.0),
        )
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
    assert [variant for variant in VARIANTS if told[variant].status] == ["status", "top", "all"]
    assert [variant for variant in VARIANTS if is_asked(variant)] == ["top", "all"]
    assert [variant for variant in VARIANTS if told[variant].record] == ["record", "all"]
    assert [variant for variant in VARIANTS if told[variant].metrics_port] == ["metrics", "all"]


def data() -> OverheadData:
    return OverheadData(turns(), [Call(1, "_write", 2.0, 0.0001)], 5.0, 40, 0.002, 80, 0.5)


def test_what_watching_takes_is_counted_in_its_own_code_and_in_the_threads_of_training() -> None:
    assert counted(data(), "all", 0) == pytest.approx([0.001] * 4)
    assert counted(data(), "all", 1) == pytest.approx([0.001 + 0.0002 / (1 + cycle) for cycle in range(4)])
    assert counted(data(), "status", 0) == [0.0] * 4


def test_the_difference_is_of_all_that_prophets_threads_do() -> None:
    assert more(data(), "all", 0) == pytest.approx([0.001] * 4)
    assert more(data(), "all", 1) == pytest.approx([0.002 + 0.0002 / (1 + cycle) for cycle in range(4)])
    assert more(data(), "status", 0) == pytest.approx([0.0] * 4)


def test_calls_are_counted_by_the_clock_of_their_own_thread() -> None:
    class Work:
        def turn(self, rounds: int, *, more: int = 0) -> int:
            return sum(range(rounds + more))

    taken_s = clocked(Work, "turn")
    assert taken_s() == 0.0
    assert Work().turn(100_000, more=1) == sum(range(100_001))
    once_s = taken_s()
    assert once_s > 0
    thread = threading.Thread(target=Work().turn, args=(100_000,))
    thread.start()
    thread.join()
    assert taken_s() > once_s


def test_calls_are_timed_while_they_are_looked_at_and_no_longer() -> None:
    class Log:
        def note(self, text: str) -> str:
            return text

        def other(self) -> None: ...

    log, calls = Log(), TimedCalls()
    with calls.of(log, ("note", "other")):
        assert [log.note("a"), log.note("b")] == ["a", "b"]
    log.note("c")
    (row,) = calls.rows(iterations=4)
    assert (row["call"], row["count"]) == ("note", 0.5)
    assert 0 < row["call_s"] < 60, "seconds"


def test_only_threads_that_watch_count() -> None:
    def work() -> None:
        sum(range(100_000))
        done.set()
        over.wait()

    took = []
    for name in ("another", "prophet-status"):
        done, over = threading.Event(), threading.Event()
        thread = threading.Thread(target=work, name=name)
        thread.start()
        done.wait()
        took.append(threads_s())
        over.set()
        thread.join()
    assert took[0] == 0 < took[1]
    assert threads_s((ANSWERING,)) == 0.0, "it has ended"


def test_the_page(tmp_path: Path) -> None:
    measured = Provenance("2026-01-02", "abc1234", "a processor", 2)
    kept.keep(tmp_path, overhead.NAME, OverheadData, data(), measured)
    text = page(tmp_path)
    assert measured.line() in text and "4 cycles with turns of 5 s" in text
    assert "looked 40 times, for which it took 2.0 ms" in text
    assert "| all | +0.10% (0.00%) | +0.10% (0.00%) | +0.11% (0.00%) | +0.21% (0.00%) |" in text
    assert "| 1 | `write` | 2.0 | 100.00 |" in text
    assert "| all | +1.00% (0.00%) | +0.00% (0.00%) |" in text


def test_a_rank_that_left_nothing_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="rank 0 left nothing; its words are in"):
        read_ranks(tmp_path)
