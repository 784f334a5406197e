"""The step from learned values to a plan: ask a policy for predictions, and a tuner for the next arm.

Rule of this file: it decides when to ask a question, what to tell the tuner, and when a step becomes a plan. No clock,
thread or file. Times are seconds, sizes bytes.

An arm is a cut and a way of averaging its blocks, with a barrier or without: times of iterations with a barrier say
nothing of those without.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from prophet_scheduler.core.arena import at_pace, profile_under, span_s
from prophet_scheduler.core.choice import (
    ArmName,
    Choice,
    ChoosingPolicy,
    IterationEnd,
    Measured,
    Question,
    Search,
    Shape,
)
from prophet_scheduler.core.cut import Cut, Refusal, blocks_of
from prophet_scheduler.core.network import Network
from prophet_scheduler.core.plan import Plan
from prophet_scheduler.core.profile import Profile
from prophet_scheduler.core.status import ArmStatus
from prophet_scheduler.learn.kept import Believed
from prophet_scheduler.learn.replan import MATERIAL_CHANGE, MATERIAL_SHIFT_S
from prophet_scheduler.learn.tuner import Arm, Belief, Look, Tuner

SURELY = 3.0
"""Standard deviations by which an arm must beat all arms of other ways to be the best beyond doubt."""
RECENT = 10
"""Maximum iterations in the median of present times."""
EVENTS_A_TURN = 1_000_000
"""Events of the simulation in one turn of the search: some 200 ms."""

PATIENCE = 20
"""Iterations after which a wanted arm that is not in force is given up."""
WAY_COST = 1.0
"""Cost of going to another way than the usual one, in iterations, each time."""


@dataclass(frozen=True)
class Changes:
    """Cost of a change of blocks on an engine, beside CHANGE_COST, and the maximum number of cuts of a job."""

    new_sends: int
    """Number of times that a new block travels before its first round."""
    lasts: int
    """Iterations over which a change is paid."""
    most_cuts: int


NEW_KEYS = Changes(new_sends=2, lasts=2, most_cuts=8)
"""Parameter servers: a new block has two new keys, and a worker sends a key's bytes once to make room for them."""
NOTHING_NEW = Changes(new_sends=0, lasts=1, most_cuts=24)
"""Collectives: the ranks agree, and that is all."""
CHANGE_COST = 0.1
"""Cost of any change of blocks, in iterations."""


MoreChoices = Callable[[Question], Sequence[Choice]]
"""Predictions of an engine's own choices, beside those of a policy."""


class Choosing:
    """The choices of one job. `adapts`: it may be cut anew; otherwise the cut in force is given, and only the rest is
    chosen. `credit`: the job's first one, in bytes.
    """

    def __init__(
        self,
        policy: ChoosingPolicy,
        shape: Shape,
        adapts: bool,
        arena: bool,
        credit: int | None,
        changes: Changes = NEW_KEYS,
    ) -> None:
        self._policy = policy
        self._shape = shape
        self._adapts = adapts
        self._arena = arena
        self._credit = credit
        self._changes = changes
        self.tuner = Tuner()
        self.look: Look | None = None
        """The tuner's last look, while it is at another arm than the one in force."""
        self._cut: Cut | None = None
        self._way = ""
        self._used: list[Cut] = []
        self._recent_s: deque[float] = deque(maxlen=RECENT)
        self._untold: list[IterationEnd] = []
        self._finest: Profile | None = None
        self._question: Question | None = None
        self._more: MoreChoices | None = None
        self._search: Search | None = None
        self._message_s: float | None = None
        self._choices: dict[ArmName, Choice] = {}
        self._wanted: Choice | None = None
        self._planned: Choice | None = None  # the one whose plan holds
        self._recalled: list[Believed] = []
        self._awaits = False  # the wanted arm has not been in force yet
        self._waited = 0  # iterations since it was wanted
        self._credit_known = False
        self._refusals: Sequence[Refusal] = ()
        self.why = ""
        """Reason for wanting the wanted cut."""
        self.arms: tuple[ArmStatus, ...] = ()
        """Arms of the job, the fastest first."""

    # Inputs.

    def in_force(self, cut: Cut, way: str = "", ended: Sequence[IterationEnd] = ()) -> None:
        """Take in the cut and the way in force, and the iterations that have ended since the last call."""
        if (cut, way) != (self._cut, self._way):
            self._cut, self._way = cut, way
            self._recent_s.clear()
            if cut not in self._used:
                self._used.append(cut)
        self._recent_s.extend(one.took_s for one in ended if (one.cut, one.way) == (cut, way) and not one.opens)
        self._untold += ended

    def refused(self, refusals: Sequence[Refusal]) -> None:
        """Take in all cuts that the engine cannot give the job now; call it at each turn."""
        self._refusals = refusals

    def recall(self, believed: Sequence[Believed]) -> None:
        """Take in beliefs about arms from an earlier run of this job."""
        self._recalled = list(believed)

    def forget(self) -> None:
        """Drop the beliefs from an earlier run."""
        self._recalled = []
        self.tuner, self._choices, self._wanted = Tuner(), {}, None

    def may_ask(self) -> bool:
        """Return True if no search and no change of arm is under way: an answer would be for an arm about to go."""
        return self._search is None and not self._awaits

    def ask(
        self,
        profile: Profile,
        network: Network,
        jitter_s: float,
        barrier: bool = False,
        more: MoreChoices | None = None,
    ) -> None:
        """Begin a search if the question has changed since the last one.

        `profile` is of the cut in force; `more` predicts the engine's own choices.
        """
        cut, old = self._cut, self._question
        if cut is None:
            return
        size = cut.typical_bytes(profile.total_bytes)
        alike = old is not None and (old.barrier, self._more) == (barrier, more)
        if old is not None and alike and not _is_another(old, profile, network, size):
            return
        if old is not None and old.barrier != barrier:
            self.tuner.another()
            self._recent_s.clear()
        credit = self._credit if self._wanted is None else self._wanted.credit
        measured = None
        if credit is not None and self._recent_s and not self._way:
            measured = Measured(cut, credit, median(self._recent_s))
        self._more = more
        self._question = Question(
            self._learned(profile, cut),
            network,
            self._shape,
            (cut, *(other for other in self._used if other != cut and self._adapts)),
            anew=self._adapts and len(self._used) < self._changes.most_cuts,
            arena=self._arena,
            jitter_s=jitter_s,
            measured=measured,
            barrier=barrier,
            message_s=self._message_s,
        )
        self._search = self._policy.search(self._question)

    def _learned(self, profile: Profile, cut: Cut) -> Profile:
        """Return the profile with the most detail so far, at the pace of the newest."""
        finest = self._finest
        finer = finest is None or len(profile.gradients) >= len(finest.gradients)
        if finest is None or finer or not self._arena or finest.total_bytes != profile.total_bytes:
            self._finest = profile
            return profile
        expected_s = span_s(profile_under(finest, cut))
        pace = span_s(profile) / expected_s if expected_s > 0 else 1.0
        return at_pace(finest, pace) if abs(pace - 1) > MATERIAL_CHANGE else finest

    # Results.

    def turn(self, may_move: bool = True) -> Plan | None:
        """Go on with the search and the arms; return the plan of a new choice, of another cut only if it `may_move`."""
        anew = False
        if self._search is not None:
            if not self._search.work(EVENTS_A_TURN):
                return self._until_then(self._search)
            self._take_up(self._search.choices)
            self._message_s = self._search.message_s
            self._search, anew = None, True
        question, cut = self._question, self._cut
        if question is None or cut is None:
            return None
        anew = self._tell(question) or anew
        wanted = self._wanted
        here = self._choices.get(ArmName(cut, self._way, question.barrier))
        self._awaits = self._awaits and wanted is not None and wanted != here
        gave_up = self._awaits and wanted is not None and not self._to_be_had(wanted, question)
        if not self._choices or (self._awaits and not gave_up):
            return None
        if anew or gave_up:
            wanted = self._wanted = self._next(here, question, may_move)
            self.arms = self._believed()
            if wanted is not here:
                # Until all workers have the wanted cut, blocks and credit are those of the cut in force.
                self._awaits, self._waited, self._planned = True, 0, here
                return replace(self._policy.chosen_plan(here or wanted, question), cut=wanted.cut)
            self._awaits = False
        if here is None or (here == self._planned and not gave_up):
            return None
        self._planned = here
        # A refused cut is wanted no more, or the engine would take it up once there is room.
        return replace(self._policy.chosen_plan(here, question), cut=cut if gave_up else None)

    def _take_up(self, choices: Sequence[Choice]) -> None:
        question, changes = self._question, self._changes
        assert question is not None
        more = () if self._more is None else self._more(question)
        self._choices = {self._name(choice): choice for choice in (*choices, *more)}
        total_bytes = question.profile.total_bytes
        had: set[tuple[int, int]] = set()
        new_bytes = {}
        # A cut in use was new once, and its first iterations may yet tell what that cost.
        for cut in dict.fromkeys((*self._used, *(name.cut for name in self._choices))):
            blocks = self._blocks(cut, total_bytes)
            new_bytes[cut] = sum(size for _, size in blocks - had)
            if cut in self._used:
                had |= blocks
        arms = []
        for name, choice in self._choices.items():
            size_bytes = choice.cut.typical_bytes(total_bytes)
            kind = name.way, name.barrier, len(choice.cut.segments) > 1  # Sizes that are mixed err otherwise.
            cost = WAY_COST if choice.way else CHANGE_COST
            sends_s = changes.new_sends * new_bytes[choice.cut] / question.network.bandwidth
            first_cost = cost + sends_s / choice.iteration_s
            arms.append(Arm(name, choice.iteration_s, size_bytes, kind, first_cost, cost, changes.lasts))
        self.tuner.predict(arms)
        for one in [one for one in self._recalled if one.name in self._choices]:
            self.tuner.recall(one.name, one.iteration_s, one.error)
            self._recalled.remove(one)

    def _blocks(self, cut: Cut, total_bytes: int) -> set[tuple[int, int]]:
        """Return start and bytes of each block; empty if new blocks cost nothing."""
        if not self._changes.new_sends:
            return set()
        if not self._arena:  # Each gradient has its own partitions, and another size makes all of them new.
            return {(cut.block_bytes_at(0), total_bytes)}
        blocks = blocks_of([total_bytes], [""], cut)
        return {(block.id, block.size_bytes) for block in blocks}

    def _tell(self, question: Question) -> bool:
        """Tell the tuner the times of iterations, once the arms are known. Return True if there were any."""
        if not self._choices:
            return False
        wanted = self._name(self._wanted) if self._wanted is not None else None
        untold, self._untold = self._untold, []
        for one in untold:
            self._waited += (one.cut, one.way) == (self._cut, self._way)
            name = ArmName(one.cut, one.way, question.barrier)
            if name in self._choices:
                (self.tuner.opened if one.opens else self.tuner.observe)(name, one.took_s)
                self._awaits = self._awaits and name != wanted
        if self._awaits and wanted is not None and self._waited > PATIENCE:
            self._choices.pop(wanted, None)
            self._awaits = False
        return bool(untold)

    def _next(self, here: Choice | None, question: Question, may_move: bool) -> Choice:
        """Return the choice for the next iterations."""
        if here is not None and not (self._adapts and may_move):
            self.look = None
            return here
        possible: dict[Hashable, Choice] = {
            name: choice for name, choice in self._choices.items() if self._to_be_had(choice, question)
        }
        step = self.tuner.next(here and self._name(here), possible)
        wanted = possible[step.arm]
        self.look = step if wanted is not here else None
        if wanted is not here:
            self.why = f"{step.iterations} iterations of it are worth {step.gain:.2%} of the time"
        return wanted

    def _believed(self) -> tuple[ArmStatus, ...]:
        arms = [
            ArmStatus(name.cut.segments, name.way, predicted.iteration_s, one.iteration_s, one.error, one.seen)
            for (name, one), predicted in zip(self._beliefs(), self._choices.values(), strict=True)
        ]
        return tuple(sorted(arms, key=lambda arm: arm.believed_s))

    def _beliefs(self) -> list[tuple[ArmName, Belief]]:
        """Return beliefs about the present arms."""
        beliefs = self.tuner.beliefs()
        return [(name, beliefs[name]) for name in self._choices]

    def _name(self, choice: Choice) -> ArmName:
        assert self._question is not None
        return ArmName(choice.cut, choice.way, self._question.barrier)

    def _to_be_had(self, choice: Choice, question: Question) -> bool:
        cut = choice.cut
        if cut == self._cut or not self._refusals:
            return True
        if any(refusal.cut == cut for refusal in self._refusals):
            return False
        total_bytes = question.profile.total_bytes
        return cut in self._used or not any(refusal.covers(cut, total_bytes) for refusal in self._refusals)

    def _until_then(self, search: Search) -> Plan | None:
        """Return a plan with the best credit for the cut in force, once the first search has found it."""
        if self._credit_known or self._wanted is not None or self._question is None:
            return None
        choice = next((choice for choice in search.choices if choice.cut == self._cut), None)
        if choice is None:
            return None
        self._credit_known = True
        return replace(self._policy.chosen_plan(choice, self._question), cut=None)

    @property
    def wanted(self) -> Choice | None:
        """Wanted choice, in force or not, and its prediction; None before there is a choice."""
        return self._wanted

    @property
    def proved(self) -> bool:
        """True if the wanted way is better than all others beyond doubt, as seen in this run of the job."""
        if self._wanted is None or self._question is None:
            return False
        name = self._name(self._wanted)
        others = [other for other in self._choices if other.way != name.way]
        return self.tuner.beliefs()[name].seen > 0 and self.tuner.lead(name, others) > SURELY

    def believed(self) -> dict[str, Belief]:
        """Return the belief about the best arm of each way."""
        best: dict[str, Belief] = {}
        for name, belief in self._beliefs():
            if name.way not in best or belief.iteration_s < best[name.way].iteration_s:
                best[name.way] = belief
        return best

    @property
    def known(self) -> tuple[Believed, ...]:
        """Beliefs about the arms that the job has had, for its next start."""
        return tuple(Believed(*name, one.iteration_s, one.error) for name, one in self._beliefs() if one.seen)

    @property
    def at_rest(self) -> bool:
        """True if the job looks for nothing better."""
        decided = self._wanted is not None and self.look is None and not self.tuner.settling
        return self._search is None and decided


def _is_another(old: Question, profile: Profile, network: Network, size: int) -> bool:
    """Return True if predictions would differ: backward, the transfers or the acknowledgements take another time.

    `size` is that of the job's present blocks.
    """
    before, after = old.profile.total_bytes, profile.total_bytes
    if abs(before - after) > MATERIAL_CHANGE * max(before, after):
        return True
    count = max(1.0, after / size)
    return (
        _differ(old.profile.backward_s, profile.backward_s)
        or _differ(count * old.network.transfer_s(size), count * network.transfer_s(size))
        or abs(network.ack_delay_s - old.network.ack_delay_s) > max(MATERIAL_SHIFT_S, network.transfer_s(size))
    )


def _differ(a: float, b: float) -> bool:
    return abs(a - b) > max(MATERIAL_CHANGE * max(a, b), MATERIAL_SHIFT_S)
