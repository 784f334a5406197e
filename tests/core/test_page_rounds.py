"""Tests of which rounds end with a page."""

from __future__ import annotations

from prophet_scheduler.core.cut import EARLY_ROUNDS, RECUT_ROUNDS, PageRounds

REGULAR = [
    *range(1, EARLY_ROUNDS + 1),
    *range(EARLY_ROUNDS + RECUT_ROUNDS, EARLY_ROUNDS + 4 * RECUT_ROUNDS, RECUT_ROUNDS),
]


def pages(rounds: PageRounds, taken_up_before: int = 0) -> list[int]:
    """Return the rounds that end with a page, if a decision is taken up before one of them."""
    found = []
    for number in range(1, EARLY_ROUNDS + 4 * RECUT_ROUNDS):
        if number == taken_up_before:
            rounds.taken_up()
        found += [number] if rounds.round_ends() else []
    return found


def test_a_jobs_first_rounds_and_then_every_few_end_with_a_page() -> None:
    assert EARLY_ROUNDS % RECUT_ROUNDS == 0
    assert pages(PageRounds()) == pages(PageRounds(tried=3)) == REGULAR


def test_a_decision_is_tried_in_some_rounds_more_the_first_of_which_is_late() -> None:
    first = EARLY_ROUNDS + RECUT_ROUNDS + 1
    assert pages(PageRounds(), first) == REGULAR
    assert pages(PageRounds(tried=3), first) == sorted({*REGULAR, first + 1, first + 2})
    late = EARLY_ROUNDS + 2 * RECUT_ROUNDS
    assert pages(PageRounds(tried=3), late) == sorted({*REGULAR, late + 1, late + 2} - {late})
    rounds = PageRounds(tried=3)
    rounds.taken_up()
    assert (rounds.round_ends(), rounds.late) == (False, True)
    assert (rounds.round_ends(), rounds.late) == (True, False)
