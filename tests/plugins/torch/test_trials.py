"""The way back from a cut that is far worse: what is wanted, what the agent hears, and how soon all ranks have it."""

from __future__ import annotations

from typing import Any

from prophet.core.cut import UNIT_BYTES, Cut
from prophet.learn.trial import LEAST, WARM_UP
from prophet_ddp.control import EARLY_ROUNDS, TRIED_ROUNDS, Control, Decision
from prophet_ddp.events import EventLog
from prophet_ddp.issuer import Issuer, JointOperation
from prophet_ddp.trials import CutTrial
from support.collectives import Wire

FIRST, SECOND, THIRD = (Decision(Cut.uniform(UNIT_BYTES * size), (0,)) for size in (1, 2, 3))
TAKES_S = {FIRST.cut: 1.0, SECOND.cut: 3.0, THIRD.cut: 0.9}


class Job:
    """Rounds on a virtual clock, of one rank: its control is real, and what a round takes follows from its cut."""

    def __init__(self) -> None:
        self.wire = Wire(1, lambda rank, number: 0.0)
        self.issuer: Any = Issuer(self.wire.groups[0], EventLog(open=False))
        self.control = Control(self.issuer, 0)
        self.now_s = 0.0
        self.back_s: float | None = None
        self.trial = CutTrial(self.control, self, lambda: self.now_s)  # type: ignore[arg-type]
        self.decision = FIRST
        self.had: list[Decision] = []
        self.trial.took_up(FIRST)

    @property
    def last_back_s(self) -> float | None:
        return self.back_s

    def wait(self, operation: JointOperation) -> None:
        self.wire.run()
        assert operation.done

    def round(self, pause_s: float = 0.0) -> None:
        """One, and what the program does after it."""
        if self.had:
            self.trial.round_begins()
            decision = self.control.round_begins(self.wait)
            if decision is not None:
                self.decision = decision
                self.trial.took_up(decision)
        self.had.append(self.decision)
        self.now_s += TAKES_S[self.decision.cut]
        self.back_s = self.now_s
        self.now_s += pause_s
        self.issuer.append(self.control.round_ends())

    def rounds(self, count: int) -> None:
        for _ in range(count):
            self.round()


def test_what_is_far_worse_is_in_force_for_one_round() -> None:
    job = Job()
    job.rounds(WARM_UP + LEAST + 3)
    job.control.want(SECOND)
    job.rounds(6)
    assert job.had.count(SECOND) == 1
    assert job.decision == FIRST
    assert job.trial.left() == [(SECOND.cut, 3.0)]
    assert job.trial.left() == []


def test_also_where_pages_have_become_rare() -> None:
    job = Job()
    job.rounds(EARLY_ROUNDS + 4 * TRIED_ROUNDS)
    job.control.want(SECOND)
    job.rounds(TRIED_ROUNDS)
    assert job.had.count(SECOND) == 1


def test_what_is_better_stays_and_is_what_the_next_one_is_compared_with() -> None:
    job = Job()
    job.rounds(12)
    job.control.want(THIRD)
    job.rounds(12)
    assert job.decision == THIRD
    job.control.want(SECOND)
    job.rounds(6)
    assert job.had.count(SECOND) == 1 and job.decision == THIRD


def test_another_that_is_wanted_on_the_way_back_is_tried_as_well() -> None:
    job = Job()
    job.rounds(12)
    job.control.want(SECOND)
    while job.decision != SECOND:
        job.round()
    job.trial.round_begins()
    job.control.want(Decision(Cut.uniform(UNIT_BYTES * 2), (0,), at_once=5))
    job.rounds(4)
    assert job.decision == FIRST
    assert len(job.trial.left()) == 2


def test_a_pause_of_the_program_is_not_blamed_on_a_cut() -> None:
    job = Job()
    job.rounds(12)
    job.control.want(THIRD)
    while job.decision != THIRD:
        job.round()
    job.round(pause_s=60.0)
    job.rounds(6)
    assert job.decision == THIRD and job.trial.left() == []


def test_rounds_of_torchs_reducer_in_between_do_not_count() -> None:
    job = Job()
    job.rounds(12)
    job.control.want(THIRD)
    while job.decision != THIRD:
        job.round()
    job.now_s += 100.0
    job.back_s = None
    job.trial.paused()
    job.rounds(6)
    assert job.decision == THIRD and job.trial.left() == []
