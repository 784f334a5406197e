"""The step from learned values to a plan: ask a policy for predictions, then a tuner for the next arm.

Rule of this file: it decides when to ask a question, when to report iterations to the tuner, and when the tuner's
choice becomes a plan. No clock, thread or file. Times are in seconds, sizes in bytes.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from prophet_scheduler.core.choice import ArmName, Choice, ChoosingPolicy, IterationEnd, Question, Search
from prophet_scheduler.core.cut import Cut, Refusal
from prophet_scheduler.core.plan import Plan
from prophet_scheduler.session.arms import Arms, name_of
from prophet_scheduler.session.kept import Believed
from prophet_scheduler.session.questions import Present, Questions
from prophet_scheduler.session.tuner import Belief, Look

if TYPE_CHECKING:
    from prophet_scheduler.core.status import ArmStatus
    from prophet_scheduler.session.messages import Basis, SessionTerms, WaysOf

WAIT = 20
"""Iterations to wait for a wanted arm to take effect before giving it up."""


class Choosing:
    """Choices of one job. `credit`: the job's initial credit, in bytes. If the job may not be recut (`terms.adapts` is
    False), the cut stays as it is and only the rest is chosen.
    """

    def __init__(
        self, policy: ChoosingPolicy, terms: SessionTerms, credit: int | None, ways_of: WaysOf | None = None
    ) -> None:
        self._policy = policy
        self._adapts = terms.adapts
        self._credit = credit
        self._present = Present()
        self._questions = Questions(policy, terms, ways_of)
        self._arms = Arms(terms)
        self._refusals: Sequence[Refusal] = ()
        self._untold: list[IterationEnd] = []
        self.wanted: Choice | None = None
        """Wanted choice with its prediction, in force or not; None before the first choice."""
        self._waited: int | None = None
        """Iterations spent waiting for a wanted arm to take effect; None if not waiting."""
        self._planned: Choice | None = None
        """Choice behind the present plan."""
        self._credit_known = False
        self.look: Look | None = None
        """The tuner's latest look (trial of an arm); None if it wants the arm already in force."""
        self.why = ""
        """Reason for the wanted cut."""
        self.arms: tuple[ArmStatus, ...] = ()
        """Arms of the job, fastest first."""

    # Inputs.

    def in_force(self, cut: Cut, way: str = "", ended: Sequence[IterationEnd] = (), ways: Sequence[str] = ()) -> None:
        """Record the cut and the way in force, and the iterations that have ended since the last call. `ways` are the
        engine's own ways that are possible now.
        """
        self._present.take_in(cut, way, ended, ways)
        self._untold += ended

    def refused(self, refusals: Sequence[Refusal]) -> None:
        """Record all cuts that the engine cannot give the job now; call this on each turn."""
        self._refusals = refusals

    def recall(self, believed: Sequence[Believed]) -> None:
        """Record beliefs about arms from an earlier run of this job."""
        self._arms.recall(believed)

    def forget(self) -> None:
        """Drop the beliefs from an earlier run."""
        self._arms.forget()
        self.wanted = None

    @property
    def lacks_ways(self) -> bool:
        """True if the last question did not cover exactly the ways that are possible now."""
        return self._questions.lacks(self._present.ways)

    def may_ask(self, job_changed: bool = False) -> bool:
        """Return True if no search is in progress, and no change of arm: the answer would be for an outgoing arm. If
        the job has changed, predictions for the incoming arm are wrong, too.
        """
        return self._questions.search is None and (self._waited is None or job_changed)

    def ask(self, basis: Basis) -> None:
        """Start a search if the question has changed since the last one. The profile belongs to the cut in force."""
        present, questions = self._present, self._questions
        if present.cut is None or not questions.is_another(present, present.cut, basis):
            return
        if questions.last is not None and questions.last.barrier != basis.barrier:
            self._arms.tuner.another()
            present.recent_s.clear()
        credit = self._credit if self.wanted is None else self.wanted.credit
        questions.ask(present, basis, credit if self._waited is None else None)

    # Results.

    def turn(self, may_move: bool = True) -> Plan | None:
        """Advance the search and the arms. Return the plan of a new choice; its cut may change only if `may_move`."""
        questions, choices = self._questions, self._questions.work()
        if questions.search is not None:
            return self._until_then(questions.search)
        question, cut = questions.last, self._present.cut
        if choices is not None and question is not None:
            self._arms.predict(question, choices, self._present.used)
        if question is None or cut is None:
            return None
        anew = self._tell(question) or choices is not None
        here = self._arms.choices.get(ArmName(cut, self._present.way, question.barrier))
        if self.wanted is None or self.wanted == here:
            self._waited = None
        gave_up = self._waited is not None and self.wanted is not None and not self._to_be_had(self.wanted, question)
        if not self._arms.choices or (self._waited is not None and not gave_up):
            return None
        if anew or gave_up:
            wanted = self.wanted = self._next(here, question, may_move)
            self.arms = self._arms.status
            if wanted is not here:
                # Until all workers have the wanted cut, the cut in force sets the blocks and the credit.
                self._waited, self._planned = 0, here
                return replace(self._policy.chosen_plan(here or wanted, question), cut=wanted.cut)
            self._waited = None
        if here is None or (here == self._planned and not gave_up):
            return None
        self._planned = here
        # Withdraw a refused cut, or the engine would adopt it once it has room.
        return replace(self._policy.chosen_plan(here, question), cut=cut if gave_up else None)

    def _tell(self, question: Question) -> bool:
        """Report iteration times to the tuner, once the arms are known. Return True if there were any."""
        arms = self._arms
        if not arms.choices:
            return False
        wanted = name_of(self.wanted, question) if self.wanted is not None else None
        untold, self._untold = self._untold, []
        for one in untold:
            name = ArmName(one.cut, one.way, question.barrier)
            arms.observe(name, one)
            if self._waited is not None:
                came = name == wanted and name in arms.choices
                self._waited = None if came else self._waited + self._present.has(one)
        if wanted is not None and self._waited is not None and self._waited > WAIT:
            arms.choices.pop(wanted, None)
            self._waited = None
        return bool(untold)

    def _next(self, here: Choice | None, question: Question, may_move: bool) -> Choice:
        """Return the choice for the next iterations."""
        if here is not None and not (self._adapts and may_move):
            self.look = None
            return here
        possible: dict[Hashable, Choice] = {
            name: choice for name, choice in self._arms.choices.items() if self._to_be_had(choice, question)
        }
        step = self._arms.tuner.next(here and name_of(here, question), possible)
        wanted = possible[step.arm]
        self.look = step if wanted is not here else None
        if wanted is not here:
            self.why = f"{step.iterations} iterations of it should save {step.gain:.2%} of the time"
        return wanted

    def _to_be_had(self, choice: Choice, question: Question) -> bool:
        cut = choice.cut
        if cut == self._present.cut or not self._refusals:
            return True
        if any(refusal.cut == cut for refusal in self._refusals):
            return False
        total_bytes = question.profile.total_bytes
        return cut in self._present.used or not any(refusal.covers(cut, total_bytes) for refusal in self._refusals)

    def _until_then(self, search: Search) -> Plan | None:
        """Return a plan with the best credit for the cut in force, once the first search has found that credit."""
        question = self._questions.last
        if self._credit_known or self.wanted is not None or question is None:
            return None
        choice = next((choice for choice in search.choices if choice.cut == self._present.cut), None)
        if choice is None:
            return None
        self._credit_known = True
        return replace(self._policy.chosen_plan(choice, question), cut=None)

    @property
    def proved(self) -> bool:
        """True if this run of the job has proven the wanted way better than all others."""
        question = self._questions.last
        return self.wanted is not None and question is not None and self._arms.proves(name_of(self.wanted, question))

    def believed(self) -> dict[str, Belief]:
        """Return the belief about the best arm of each way."""
        best: dict[str, Belief] = {}
        for name, belief in self._arms.beliefs():
            if name.way not in best or belief.iteration_s < best[name.way].iteration_s:
                best[name.way] = belief
        return best

    @property
    def known(self) -> tuple[Believed, ...]:
        """Beliefs about the arms that the job has tried, for its next start."""
        return tuple(Believed(*name, one.iteration_s, one.error) for name, one in self._arms.beliefs() if one.seen)

    @property
    def at_rest(self) -> bool:
        """True if the job is not looking for anything better."""
        decided = self.wanted is not None and self.look is None and not self._arms.tuner.settling
        return self._questions.search is None and decided and not self.lacks_ways
