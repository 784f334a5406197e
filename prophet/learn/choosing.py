"""From what is learned to a choice: the question to a policy that predicts, its search, and what came of it.

Rule of this file: which question is asked when, and when a choice becomes a plan. No clock, thread or file.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from prophet.core.arena import at_pace, profile_under, span_s
from prophet.core.choice import Choice, ChoosingPolicy, Measured, Question, Search, Shape
from prophet.core.cut import Cut, Refusal
from prophet.core.network import Network
from prophet.core.plan import Plan
from prophet.core.profile import Profile
from prophet.learn.judge import FAR, FEW_RECUTS, LARGE, Judge, Recuts, robust_deviation
from prophet.learn.replan import MATERIAL_CHANGE, MATERIAL_SHIFT_S

if TYPE_CHECKING:
    from numpy.typing import NDArray

RECENT = 10
LEAST_RECENT = 4
"""What the job does now is the median of so many iterations, or of fewer but not of less than these."""
FAR_CHANGE = 0.5
"""What differs by more than this share is another, whatever iterations take. Where ranks share processors, computing
and sending seem to change by a tenth at any time, and the iteration does not; a job with many recuts would try them
all again each time."""
SURELY = 4.0
"""Iterations take another time than before where that differs by more than so many standard errors. They are looked at
every few seconds for as long as the job lasts, and what seems to be another network makes it try its blocks again."""
DISPROVED = 0.25
"""A prediction that is off by more than this share of what was measured was made from what does not hold, such as the
job's first iterations."""
LEAST_DELAY_S = 1e-3
"""Delays that differ by less are alike: a busy machine is late by so much."""
EVENTS_A_TURN = 250_000
"""Of the simulation, in one turn of the search: some 50 ms."""


class Choosing:
    """The choices of one job. `adapts`: it may be cut anew; otherwise the cut in force is given, and only the rest is
    chosen. `credit` is what the job begins with.
    """

    def __init__(
        self,
        policy: ChoosingPolicy,
        shape: Shape,
        adapts: bool,
        arena: bool,
        credit: int | None,
        recuts: Recuts = FEW_RECUTS,
    ) -> None:
        self._policy = policy
        self._shape = shape
        self._adapts = adapts
        self._arena = arena
        self._credit = credit
        self._judge = Judge(recuts)
        self._cut: Cut | None = None
        self._finest: Profile | None = None
        self._question: Question | None = None
        self._search: Search | None = None
        self._choices: Sequence[Choice] = ()
        self._wanted: Choice | None = None
        self._recent_s: float | None = None
        self._newest_s: float | None = None
        self._usual: tuple[Question | None, Cut, NDArray[np.float64]] | None = None
        """What iterations took under this cut when they were first looked at since this question."""
        self._computes_s: dict[Cut, float] = {}
        """Backward, as it was when first seen under each cut: where cores are short many messages make it longer."""
        self._steady = True
        self._ended = 0
        self._moved_at: int | None = None
        """How many iterations had ended when what is sent first seemed to take another time."""
        self._credit_known = False
        self._awaited = False  # the wanted cut is not in force yet
        self._doubted: set[Cut] = set()
        self._failed: Measured | None = None
        self._before_barrier: Cut | None = None
        self._return_to: Cut | None = None
        self._asked_of_failed: Measured | None = None
        self._told_of: set[Cut] = set()
        self._disbelieved = False  # what the last question's answers promise of blocks that are yet to be tried
        self._refusals: Sequence[Refusal] = ()
        self.why = ""

    def in_force(self, cut: Cut, periods_s: NDArray[np.float64], ended: int) -> None:
        """The cut that holds, and the iterations since it does: what the newest took, and how many have `ended`."""
        self._ended = ended
        if cut != self._cut:
            self._cut = cut
            self._moved_at = None
            self._judge.in_force(cut)
            if self._wanted is None or cut != self._wanted.cut:
                self._question = None
        self._judge.measured(cut, periods_s)  # Also while another is awaited: what is next is compared with the last.
        known = len(periods_s) >= LEAST_RECENT
        self._recent_s = float(np.median(periods_s[-RECENT:])) if known else None
        self._newest_s = float(np.median(periods_s[-LEAST_RECENT:])) if known else None
        self._steady = self._as_usual(cut, periods_s)

    def _as_usual(self, cut: Cut, periods_s: NDArray[np.float64]) -> bool:
        """Whether the newest iterations take as long as the first under this cut, as far as that is known.

        How much they scatter is told from all under this cut, since of a few it may seem little by chance, and from
        those that follow one another, since that is the same before a change and after it.
        """
        usual = self._usual
        if usual is None or usual[0] is not self._question or usual[1] != cut:
            self._usual = (self._question, cut, periods_s) if len(periods_s) >= 2 * LEAST_RECENT else None
            return True
        if len(periods_s) < 2 * LEAST_RECENT:
            return True
        first_s = float(np.median(usual[2]))
        steps_s = np.diff(periods_s)
        usual_s = np.minimum(np.abs(steps_s), FAR * robust_deviation(steps_s))  # without outliers and the change
        scatter_s = math.sqrt(float(np.mean(usual_s**2)) / 2)
        for count in (LEAST_RECENT, RECENT):
            error_s = scatter_s * math.sqrt(math.pi / 2 * (1 / count + 1 / len(usual[2])))
            if abs(float(np.median(periods_s[-count:])) - first_s) > max(LARGE * first_s, SURELY * error_s):
                return False
        return True

    def refused(self, refusals: Sequence[Refusal]) -> None:
        """What the engine cannot give the job as things are; all of it, at each turn."""
        self._refusals = refusals

    def reordered(self) -> None:
        """The blocks in force travel in another sequence from now on."""
        self._usual = None
        if self._cut is not None:
            self._judge.forget(self._cut)

    def left(self, cut: Cut, iteration_s: float) -> None:
        """The engine has gone back from this cut by itself, since an iteration took at least so long."""
        self._judge.left(cut, iteration_s)
        wanted = self._wanted
        if wanted is not None and wanted.cut == cut:
            # What it cost besides is to be counted in what is predicted next, and before that nothing is chosen.
            self._failed = Measured(cut, wanted.credit, iteration_s)
            self._wanted, self._awaited, self._choices = None, False, ()

    def _learned(self, profile: Profile, cut: Cut) -> Profile:
        """The profile with the most detail that there was, at the pace of the newest."""
        finest = self._finest
        finer = finest is None or len(profile.gradients) >= len(finest.gradients)
        if finest is None or finer or not self._arena or finest.total_bytes != profile.total_bytes:
            self._finest = profile
            return profile
        expected_s = span_s(profile_under(finest, cut))
        factor = span_s(profile) / expected_s if expected_s > 0 else 1.0
        return at_pace(finest, factor) if abs(factor - 1) > MATERIAL_CHANGE else finest

    def may_ask(self, warm: bool) -> bool:
        """Whether it is known what the job does now, and no search is under way.

        With what was kept of an earlier run (`warm`) the first question need not wait for that. While a cut is awaited
        nothing is asked: the answer would be for the one that is about to go, and until it came the new blocks would
        have the old ones' credit, which may be a single block.
        """
        if self._search is not None or self._awaited:
            return False
        seen = self._cut is not None and self._judge.seen(self._cut)
        at_once = warm or not self._judge.recuts.waits
        return seen or (self._question is None and (at_once or self._recent_s is not None))

    def ask(self, profile: Profile, network: Network, jitter_s: float, barrier: bool = False) -> bool:
        """Begins a search where the last one's question is another by now; `profile` is of the cut in force.

        Whether the job or its network has changed, so that what iterations took before may say nothing of now.
        """
        if self._cut is None:
            return False
        disproved = self._disproved
        if disproved:
            self._doubted.add(self._cut)
            if len(profile.gradients) > 1:  # Of one block alone it is not even known when backward begins.
                self._finest = None
        profile = self._learned(profile, self._cut)
        computed_s = self._computes_s.setdefault(self._cut, profile.backward_s)
        credit = self._credit if self._wanted is None else self._wanted.credit
        now_s, changed = self._recent_s, False
        old = self._question
        if old is not None:
            size = self._cut.typical_bytes(profile.total_bytes)
            if old.barrier != barrier:
                # Where iterations wait no more, the cut that was the best before they did.
                self._before_barrier, self._return_to = (self._cut, None) if barrier else (None, self._before_barrier)
            changed = old.barrier != barrier or self._is_another(old, computed_s, profile, network, size)
            moved = self._shown(self._has_moved(old, profile, network, size))
            delayed = _delayed(old.network, network, size)
            if not (changed or moved or delayed or disproved or self._failed is not self._asked_of_failed):
                return False
            if old.barrier == barrier and self._judge.better_former(self._cut) is not None:
                return False  # What seems to be another network may be how this cut shows it: first back to that one.
            # Where blocks grow along backward, those in flight differ, and what each costs cannot be told either.
            sizes = {segment.block_bytes for segment in self._cut.segments}
            if len(sizes) == 1 or (barrier and self._cut != self._judge.used[0]):
                network = _of_one_size(network, old.network, size)
            if changed:
                self._judge.new_regime()
                self._computes_s = {self._cut: profile.backward_s}
                self._failed = None
                self._told_of.clear()
                now_s = self._newest_s  # Of those before, most were of another network.
        measured = Measured(self._cut, credit, now_s) if now_s is not None and credit is not None else None
        self._asked_of_failed = self._failed
        cuts = (self._cut, *(cut for cut in self._judge.used if cut != self._cut and self._adapts))
        self._question = Question(
            profile,
            network,
            self._shape,
            cuts,
            anew=self._adapts and self._judge.may_cut_anew,
            arena=self._arena,
            jitter_s=jitter_s,
            measured=measured,
            failed=self._failed,
            barrier=barrier,
        )
        self._search, self._moved_at, self._disbelieved = self._policy.search(self._question), None, False
        return changed

    def _is_another(self, old: Question, computed_s: float, profile: Profile, network: Network, size: int) -> bool:
        """Whether the job or its network is another than in the last question, far more than they seem to be at times;
        `computed_s` is what backward took at first under this cut.

        Where cores are busy gradients come later the more messages there are, and a recut looks like another model. But
        where what is computed or sent is another, iterations take longer or shorter.
        """

        def differs(share: float) -> bool:
            computes = _differ(computed_s, profile.backward_s, share)
            return computes or _sends_otherwise(old, profile, network, size, share)

        return differs(FAR_CHANGE) or (not self._steady and differs(MATERIAL_CHANGE))

    def _has_moved(self, old: Question, profile: Profile, network: Network, size: int) -> bool:
        """Whether what is sent seems to take another time, though iterations do not, or backward a far other one with
        these blocks: what iterations took with each cut still holds, but another may be predicted to be better. Where
        many cuts may be tried, trying tells more.
        """
        if not self._judge.recuts.waits:
            return False
        computes = _differ(old.profile.backward_s, profile.backward_s, FAR_CHANGE)
        return computes or _sends_otherwise(old, profile, network, size, MATERIAL_CHANGE)

    def _shown(self, moved: bool) -> bool:
        """Whether what is sent has seemed to take another time for so many iterations that they show whether it does.

        What they took before would else be put down to the cut that is chosen next.
        """
        if not moved:
            self._moved_at = None
            return False
        if self._moved_at is None:
            self._moved_at = self._ended
        return self._ended - self._moved_at >= LEAST_RECENT

    def turn(self) -> Plan | None:
        """Goes on with the search; the plan of a choice that is new."""
        if self._search is not None:
            if not self._search.work(EVENTS_A_TURN):
                return self._until_then(self._search, self._question)
            self._choices = self._search.choices
            self._search = self._wanted = None
        if not self._choices or self._question is None or self._cut is None:
            return None
        gave_up = False
        if self._awaited and self._wanted is not None and not self._to_be_had(self._wanted.cut, self._question):
            # It would be waited for as long as the job lasts.
            self._wanted, self._awaited, gave_up = None, False, True
        if self._wanted is not None:
            if self._awaited and self._wanted.cut == self._cut:
                self._awaited = False
                return self._policy.chosen_plan(self._wanted, self._question)
            if not self._adapts or self._wanted.cut != self._cut or not self.settled:
                return None
        current = next((choice for choice in self._choices if choice.cut == self._cut), None)
        if current is None:
            return None
        question = self._question
        possible = [choice for choice in self._choices if self._to_be_had(choice.cut, question)]
        if self._disbelieved:
            # The others would cost as much. What the network is known to be by then is asked about first.
            possible = [choice for choice in possible if choice.cut in self._judge.used]
        wanted = self._judge.wanted(possible, self._cut) if self._adapts else current
        if self._return_to is not None:
            wanted = next((choice for choice in possible if choice.cut == self._return_to), wanted)
            self._return_to = None
        if wanted == self._wanted:
            return None
        took_s = self._judge.iteration_s(self._cut)
        longer = took_s is not None and took_s > current.iteration_s * (1 + LARGE)
        if wanted.cut != self._cut and took_s is not None and longer and self._cut not in self._told_of:
            # What it cost besides is to be counted in what is predicted next; once, or cuts that take turns would be
            # asked about for ever.
            self._failed = Measured(self._cut, current.credit, took_s)
            self._told_of.add(self._cut)
            self._disbelieved = took_s > current.iteration_s * (1 + FAR_CHANGE)
        self._wanted = wanted
        self._awaited = wanted.cut != self._cut
        if not self._awaited:
            # What was refused is wanted no more, or it would be taken up once there is room for it.
            return replace(self._policy.chosen_plan(wanted, question), cut=self._cut if gave_up else None)
        self.why = f"predicted {wanted.iteration_s:.4g} s an iteration"
        # Until all workers have that cut, blocks are those of the one in force, and so is the credit that they need.
        return replace(self._policy.chosen_plan(current, question), cut=wanted.cut)

    def _to_be_had(self, cut: Cut, question: Question) -> bool:
        if cut == self._cut or not self._refusals:
            return True
        if any(refusal.cut == cut for refusal in self._refusals):
            return False
        total_bytes = question.profile.total_bytes
        return cut in self._judge.used or not any(refusal.covers(cut, total_bytes) for refusal in self._refusals)

    def _until_then(self, search: Search, question: Question | None) -> Plan | None:
        """In the first search, the credit that is best for the cut in force, as soon as that is known."""
        if self._credit_known or self._wanted is not None or question is None:
            return None
        choice = next((choice for choice in search.choices if choice.cut == self._cut), None)
        if choice is None:
            return None
        self._credit_known = True
        return replace(self._policy.chosen_plan(choice, question), cut=None)

    @property
    def wanted(self) -> Choice | None:
        """What is wanted, in force or not, and what was predicted of it; None before there is a choice."""
        return self._wanted

    @property
    def at_rest(self) -> bool:
        """Whether the cut in force is wanted and has been measured, and nothing better is being looked for."""
        wanted = self._wanted
        return self._search is None and wanted is not None and wanted.cut == self._cut and self.settled

    @property
    def _disproved(self) -> bool:
        """Whether the cut in force was predicted to be quite another than it turned out; asked once for each cut.

        Only where another cut costs little: each answer may be one.
        """
        cut, wanted = self._cut, self._wanted
        if self._judge.recuts.waits or cut is None or wanted is None or wanted.cut != cut or cut in self._doubted:
            return False
        measured_s = self._judge.iteration_s(cut)
        return measured_s is not None and abs(wanted.iteration_s - measured_s) > DISPROVED * measured_s

    @property
    def settled(self) -> bool:
        """The cut in force has been measured."""
        return self._cut is not None and self._judge.iteration_s(self._cut) is not None


def _sends_otherwise(question: Question, profile: Profile, network: Network, size: int, share: float) -> bool:
    """Whether what a choice was made from would be sent in another time by more than this `share`, or is more or less.

    `size` is that of the blocks that the job has. In a job of milliseconds a tenth is how far any two looks differ.
    """
    before, after = question.profile.total_bytes, profile.total_bytes
    if abs(before - after) > share * max(before, after):
        return True
    count = max(1.0, after / size)
    return _differ(count * question.network.transfer_s(size), count * network.transfer_s(size), share)


def _differ(a: float, b: float, share: float) -> bool:
    return abs(a - b) > max(share * max(a, b), MATERIAL_SHIFT_S)


def _delayed(before: Network, now: Network, size: int) -> bool:
    """Whether acknowledgements come so much later or earlier that another number of blocks is to be in flight.

    What iterations took with the blocks that there are still holds, so this is no other regime.
    """
    return abs(now.ack_delay_s - before.ack_delay_s) > max(LEAST_DELAY_S, now.transfer_s(size))


def _of_one_size(network: Network, before: Network, size: int) -> Network:
    """`network`, where blocks of one size say no more than what such a block costs: the overhead is what it was."""
    rest_s = network.transfer_s(size) - before.overhead_s
    if rest_s <= 0:
        return network
    return replace(network, bandwidth=size / rest_s, overhead_s=before.overhead_s)
