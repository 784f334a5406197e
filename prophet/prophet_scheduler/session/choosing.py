"""The step from learned values to a plan: ask a policy for predictions, and a tuner for the next arm.

Rule of this file: it decides when to ask a question, when iterations are told to the tuner, and when its step becomes a
plan. No clock, thread or file. Times are seconds, sizes bytes.
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
"""Iterations after which a wanted arm that is not in force is given up."""


class Choosing:
    """Choices of one job. `credit`: the job's first one, in bytes. If the job may not be cut anew (`terms.adapts`), the
    cut in force is given, and only the rest is chosen.
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
        """Wanted choice, in force or not, and its prediction; None before there is a choice."""
        self._waited: int | None = None
        """Iterations since an arm was wanted that has not been in force yet; None if there is none."""
        self._planned: Choice | None = None
        """Choice whose plan holds."""
        self._credit_known = False
        self.look: Look | None = None
        """The tuner's last look, while it is at another arm than the one in force."""
        self.why = ""
        """Reason for wanting the wanted cut."""
        self.arms: tuple[ArmStatus, ...] = ()
        """Arms of the job, the fastest first."""

    # Inputs.

    def in_force(self, cut: Cut, way: str = "", ended: Sequence[IterationEnd] = (), ways: Sequence[str] = ()) -> None:
        """Take in the cut and the way in force, and the iterations that have ended since the last call. `ways` are the
        engine's own that are possible now.
        """
        self._present.take_in(cut, way, ended, ways)
        self._untold += ended

    def refused(self, refusals: Sequence[Refusal]) -> None:
        """Take in all cuts that the engine cannot give the job now; call it at each turn."""
        self._refusals = refusals

    def recall(self, believed: Sequence[Believed]) -> None:
        """Take in beliefs about arms from an earlier run of this job."""
        self._arms.recall(believed)

    def forget(self) -> None:
        """Drop the beliefs from an earlier run."""
        self._arms.forget()
        self.wanted = None

    @property
    def lacks_ways(self) -> bool:
        """True if the last question was about other ways than those that are possible now."""
        return self._questions.lacks(self._present.ways)

    def may_ask(self) -> bool:
        """Return True if no search and no change of arm is under way: an answer would be for an arm about to go."""
        return self._questions.search is None and self._waited is None

    def ask(self, basis: Basis) -> None:
        """Begin a search if the question has changed since the last one. The profile is of the cut in force."""
        present, questions = self._present, self._questions
        if present.cut is None or not questions.is_another(present, present.cut, basis):
            return
        if questions.last is not None and questions.last.barrier != basis.barrier:
            self._arms.tuner.another()
            present.recent_s.clear()
        credit = self._credit if self.wanted is None else self.wanted.credit
        questions.ask(present, basis, credit)

    # Results.

    def turn(self, may_move: bool = True) -> Plan | None:
        """Go on with the search and the arms; return the plan of a new choice, of another cut only if it `may_move`."""
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
                # Until all workers have the wanted cut, blocks and credit are those of the cut in force.
                self._waited, self._planned = 0, here
                return replace(self._policy.chosen_plan(here or wanted, question), cut=wanted.cut)
            self._waited = None
        if here is None or (here == self._planned and not gave_up):
            return None
        self._planned = here
        # A refused cut is wanted no more, or the engine would take it up once there is room.
        return replace(self._policy.chosen_plan(here, question), cut=cut if gave_up else None)

    def _tell(self, question: Question) -> bool:
        """Tell the tuner the times of iterations, once the arms are known. Return True if there were any."""
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
            self.why = f"{step.iterations} iterations of it are worth {step.gain:.2%} of the time"
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
        """Return a plan with the best credit for the cut in force, once the first search has found it."""
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
        """True if the wanted way is better than all others beyond doubt, as seen in this run of the job."""
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
        """Beliefs about the arms that the job has had, for its next start."""
        return tuple(Believed(*name, one.iteration_s, one.error) for name, one in self._arms.beliefs() if one.seen)

    @property
    def at_rest(self) -> bool:
        """True if the job looks for nothing better."""
        decided = self.wanted is not None and self.look is None and not self._arms.tuner.settling
        return self._questions.search is None and decided and not self.lacks_ways
