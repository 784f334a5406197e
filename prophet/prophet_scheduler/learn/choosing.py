"""From what is learned to a plan: asks a policy for predictions, and a tuner which of the arms comes next.

Rule of this file: when a question is asked, what the tuner is told, and when a step becomes a plan. No clock, thread or
file. Times are seconds, sizes bytes.

An arm is a cut and a way of averaging its blocks, in a job that waits for all averages or does not: what iterations
take with a barrier says nothing of those without.
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
"""An arm is the best beyond doubt where it is better than any of another way by so many standard deviations."""
RECENT = 10
"""What the job does now is the median of so many iterations at most."""
EVENTS_A_TURN = 250_000
"""Of the simulation, in one turn of the search: some 50 ms."""

PATIENCE = 20
"""What is not in force so many iterations after it was wanted cannot be had."""
WAY_COST = 1.0
"""Iterations that another way than the usual one costs, each time."""


@dataclass(frozen=True)
class Changes:
    """Cost of a change of blocks on an engine, beside CHANGE_COST, and the number of cuts that a job may have."""

    new_sends: int
    """How often a block that the job never had travels before its first round."""
    lasts: int
    """Iterations over which a change is paid."""
    most_cuts: int


NEW_KEYS = Changes(new_sends=2, lasts=2, most_cuts=8)
"""Parameter servers: a new block has two new keys, and a worker sends a key's bytes once to make room for them."""
NOTHING_NEW = Changes(new_sends=0, lasts=1, most_cuts=24)
"""Collectives: the ranks agree, and that is all."""
CHANGE_COST = 0.1
"""Iterations that any change of blocks costs."""


MoreChoices = Callable[[Question], Sequence[Choice]]
"""What an engine can do besides what a policy predicts."""


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
        """The tuner's last, while it is another arm than the one in force."""
        self._cut: Cut | None = None
        self._way = ""
        self._used: list[Cut] = []
        self._recent_s: deque[float] = deque(maxlen=RECENT)
        self._untold: list[IterationEnd] = []
        self._finest: Profile | None = None
        self._question: Question | None = None
        self._more: MoreChoices | None = None
        self._search: Search | None = None
        self._choices: dict[ArmName, Choice] = {}
        self._wanted: Choice | None = None
        self._planned: Choice | None = None  # whose plan holds
        self._recalled: list[Believed] = []
        self._awaits = False  # the wanted arm has not been in force yet
        self._waited = 0  # for so many iterations
        self._credit_known = False
        self._refusals: Sequence[Refusal] = ()
        self.why = ""
        """Why the wanted cut is wanted."""
        self.arms: tuple[ArmStatus, ...] = ()
        """What the job can do, the fastest first."""

    # What comes in.

    def in_force(self, cut: Cut, way: str = "", ended: Sequence[IterationEnd] = ()) -> None:
        """What holds now, and the iterations that have ended since the last call."""
        if (cut, way) != (self._cut, self._way):
            self._cut, self._way = cut, way
            self._recent_s.clear()
            if cut not in self._used:
                self._used.append(cut)
        self._recent_s.extend(one.took_s for one in ended if (one.cut, one.way) == (cut, way))
        self._untold += ended

    def refused(self, refusals: Sequence[Refusal]) -> None:
        """What the engine cannot give the job as things are; all of it, at each turn."""
        self._refusals = refusals

    def recall(self, believed: Sequence[Believed]) -> None:
        """What was believed of arms in an earlier run of this job."""
        self._recalled = list(believed)

    def forget(self) -> None:
        """What was believed in an earlier run does not hold any more."""
        self._recalled = []
        self.tuner, self._choices, self._wanted = Tuner(), {}, None

    def may_ask(self) -> bool:
        """Whether no search is under way, and no other arm: the answer would be for the one that is about to go."""
        return self._search is None and not self._awaits

    def ask(
        self,
        profile: Profile,
        network: Network,
        jitter_s: float,
        barrier: bool = False,
        more: MoreChoices | None = None,
    ) -> None:
        """Begins a search where the last one's question is another by now; `profile` is of the cut in force, `more`
        has what can be done besides.
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
        )
        self._search = self._policy.search(self._question)

    def _learned(self, profile: Profile, cut: Cut) -> Profile:
        """The profile with the most detail that there was, at the pace of the newest."""
        finest = self._finest
        finer = finest is None or len(profile.gradients) >= len(finest.gradients)
        if finest is None or finer or not self._arena or finest.total_bytes != profile.total_bytes:
            self._finest = profile
            return profile
        expected_s = span_s(profile_under(finest, cut))
        pace = span_s(profile) / expected_s if expected_s > 0 else 1.0
        return at_pace(finest, pace) if abs(pace - 1) > MATERIAL_CHANGE else finest

    # What comes out.

    def turn(self) -> Plan | None:
        """Goes on with the search, and with the arms; the plan of a choice that is new."""
        anew = False
        if self._search is not None:
            if not self._search.work(EVENTS_A_TURN):
                return self._until_then(self._search)
            self._take_up(self._search.choices)
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
            wanted = self._wanted = self._next(here, question)
            self.arms = self._believed()
            if wanted is not here:
                # Until all workers have that cut, blocks are those of the one in force, and so is their credit.
                self._awaits, self._waited, self._planned = True, 0, here
                return replace(self._policy.chosen_plan(here or wanted, question), cut=wanted.cut)
            self._awaits = False
        if here is None or (here == self._planned and not gave_up):
            return None
        self._planned = here
        # What was refused is wanted no more, or it would be taken up once there is room for it.
        return replace(self._policy.chosen_plan(here, question), cut=cut if gave_up else None)

    def _take_up(self, choices: Sequence[Choice]) -> None:
        question, changes = self._question, self._changes
        assert question is not None
        more = () if self._more is None else self._more(question)
        self._choices = {self._name(choice): choice for choice in (*choices, *more)}
        total_bytes = question.profile.total_bytes
        had = {block for cut in self._used for block in self._blocks(cut, total_bytes)}
        arms = []
        for name, choice in self._choices.items():
            size_bytes = choice.cut.typical_bytes(total_bytes)
            kind = name.way, name.barrier, len(choice.cut.segments) > 1  # Sizes that are mixed err otherwise.
            cost = WAY_COST if choice.way else CHANGE_COST
            new_bytes = sum(size for _, size in self._blocks(choice.cut, total_bytes) - had)
            sends_s = changes.new_sends * new_bytes / question.network.bandwidth
            first_cost = cost + sends_s / choice.iteration_s
            arms.append(Arm(name, choice.iteration_s, size_bytes, kind, first_cost, cost, changes.lasts))
        self.tuner.predict(arms)
        for one in [one for one in self._recalled if one.name in self._choices]:
            self.tuner.recall(one.name, one.iteration_s, one.error)
            self._recalled.remove(one)

    def _blocks(self, cut: Cut, total_bytes: int) -> set[tuple[int, int]]:
        """Start and bytes of each block; empty where new blocks cost nothing."""
        if not self._changes.new_sends:
            return set()
        if not self._arena:  # Each gradient has partitions of its own, and all are other ones under another size.
            return {(cut.block_bytes_at(0), total_bytes)}
        blocks = blocks_of([total_bytes], [""], cut)
        return {(block.id, block.size_bytes) for block in blocks}

    def _tell(self, question: Question) -> bool:
        """What iterations took, once the arms are known. Whether there was any."""
        if not self._choices:
            return False
        wanted = self._name(self._wanted) if self._wanted is not None else None
        untold, self._untold = self._untold, []
        for one in untold:
            self._waited += (one.cut, one.way) == (self._cut, self._way)
            name = ArmName(one.cut, one.way, question.barrier)
            if name in self._choices:
                self.tuner.observe(name, one.took_s)
                self._awaits = self._awaits and name != wanted
        if self._awaits and wanted is not None and self._waited > PATIENCE:
            self._choices.pop(wanted, None)
            self._awaits = False
        return bool(untold)

    def _next(self, here: Choice | None, question: Question) -> Choice:
        """The choice that the next iterations should have."""
        if not self._adapts and here is not None:
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
        """Of the arms that there are now."""
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
        """In the first search, the credit that is best for the cut in force, as soon as that is known."""
        if self._credit_known or self._wanted is not None or self._question is None:
            return None
        choice = next((choice for choice in search.choices if choice.cut == self._cut), None)
        if choice is None:
            return None
        self._credit_known = True
        return replace(self._policy.chosen_plan(choice, self._question), cut=None)

    @property
    def wanted(self) -> Choice | None:
        """What is wanted, in force or not, and what was predicted of it; None before there is a choice."""
        return self._wanted

    @property
    def proved(self) -> bool:
        """Whether the wanted way is better than all others beyond doubt, as this run of the job has seen itself."""
        if self._wanted is None or self._question is None:
            return False
        name = self._name(self._wanted)
        others = [other for other in self._choices if other.way != name.way]
        return self.tuner.beliefs()[name].seen > 0 and self.tuner.lead(name, others) > SURELY

    def believed(self) -> dict[str, Belief]:
        """What is believed of the best arm of each way."""
        best: dict[str, Belief] = {}
        for name, belief in self._beliefs():
            if name.way not in best or belief.iteration_s < best[name.way].iteration_s:
                best[name.way] = belief
        return best

    @property
    def known(self) -> tuple[Believed, ...]:
        """What is believed of the arms that the job has had, for its next start."""
        return tuple(Believed(*name, one.iteration_s, one.error) for name, one in self._beliefs() if one.seen)

    @property
    def at_rest(self) -> bool:
        """Whether nothing better is being looked for."""
        return self._search is None and self._wanted is not None and self.look is None


def _is_another(old: Question, profile: Profile, network: Network, size: int) -> bool:
    """Whether predictions would be other ones: what is computed or sent takes another time, or acknowledgements do.

    `size` is that of the blocks that the job has.
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
