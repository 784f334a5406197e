"""Tests of when transfers have stopped, and of the line about it. Time is what the test says it is."""

from __future__ import annotations

import pytest

from prophet_byteps.stall import Oldest, StallDetector, Verdict, story


def verdicts(detector: StallDetector, times: range, finished: bool = False, under_way: bool = True) -> list[Verdict]:
    return [detector.turn(float(now), finished, under_way) for now in times]


def test_one_warning_a_stall_within_a_minute() -> None:
    detector = StallDetector()
    first = verdicts(detector, range(61))
    assert first.count(Verdict.WARN) == 1
    assert Verdict.END not in verdicts(detector, range(61, 10_000))
    assert detector.turn(10_000.0, True, True) is Verdict.NOTHING
    assert verdicts(detector, range(10_001, 10_061)).count(Verdict.WARN) == 1


@pytest.mark.parametrize(("finished", "under_way"), [(True, True), (False, False)])
def test_a_job_that_moves_or_has_nothing_to_send_is_no_stall(finished: bool, under_way: bool) -> None:
    assert set(verdicts(StallDetector(5.0), range(500), finished, under_way)) == {Verdict.NOTHING}


def test_idleness_before_a_transfer_does_not_count() -> None:
    detector = StallDetector(10.0)
    verdicts(detector, range(500), under_way=False)
    assert Verdict.END not in verdicts(detector, range(500, 509))


def test_the_end_comes_at_the_limit_and_before_any_warning_where_it_is_short() -> None:
    assert verdicts(StallDetector(10.0), range(11)) == [Verdict.NOTHING] * 10 + [Verdict.END]


def test_the_line_says_which_gradient_waits_for_whom() -> None:
    assert story(50.0, None, Oldest(48.0, "gradient 7")) == (
        "no transfer has finished for 50 s: the pull of gradient 7 is not answered after 48 s, "
        "so another worker has not sent it, or its server is gone"
    )
    assert "the push of gradient 3 is not acknowledged after 50 s, so its server" in story(
        50.0, Oldest(50.0, "gradient 3"), None
    )
    both = story(50.0, Oldest(50.0), Oldest(48.0, "gradient 7"))
    assert "the push of a tensor" in both
    assert "the pull of gradient 7" in both
    assert "a server, a link or another worker may be gone" in story(50.0, None, None)
