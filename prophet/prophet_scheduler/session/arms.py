"""Arms of one job: choices, their predictions, and the beliefs about their iteration times.

Rule of this file: it prepares the tuner's inputs. No clock, thread or file. Times are in seconds, sizes in bytes.

An arm is a cut plus a way of averaging its blocks, with or without a barrier: iteration times with a barrier say
nothing about times without one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from prophet_scheduler.core.choice import ArmName, Choice, IterationEnd, Question
from prophet_scheduler.core.cut import Cut, blocks_of
from prophet_scheduler.core.status import ArmStatus
from prophet_scheduler.session.kept import Believed
from prophet_scheduler.session.tuner import Arm, Belief, Tuner

if TYPE_CHECKING:
    from prophet_scheduler.session.messages import SessionTerms

SURELY = 3.0
"""Standard deviations by which an arm must beat every arm of the other ways to count as proven best."""
WAY_COST = 1.0
"""Cost of each switch to a way other than the usual one, in iterations."""
CHANGE_COST = 0.1
"""Cost of any change of blocks, in iterations."""


class Arms:
    """Arms of one job: `choices` by name, and the `tuner` with the beliefs about them."""

    def __init__(self, terms: SessionTerms) -> None:
        self._terms = terms
        self.tuner = Tuner()
        self.choices: dict[ArmName, Choice] = {}
        self._recalled: list[Believed] = []

    def recall(self, believed: Sequence[Believed]) -> None:
        """Store beliefs from an earlier run of this job until their arms are predicted."""
        self._recalled = list(believed)

    def forget(self) -> None:
        """Drop all beliefs."""
        self._recalled = []
        self.tuner, self.choices = Tuner(), {}

    def predict(self, question: Question, choices: Sequence[Choice], used: Sequence[Cut]) -> None:
        """Record the answer to a question; `used` lists the job's cuts so far, oldest first."""
        changes = self._terms.changes
        self.choices = {name_of(choice, question): choice for choice in choices}
        total_bytes = question.profile.total_bytes
        had: set[tuple[int, int]] = set()
        new_bytes = {}
        # A cut in use was new once, and its first iterations may still reveal what the change cost.
        for cut in dict.fromkeys((*used, *(name.cut for name in self.choices))):
            blocks = self._blocks(cut, total_bytes)
            new_bytes[cut] = sum(size for _, size in blocks - had)
            if cut in used:
                had |= blocks
        arms = []
        for name, choice in self.choices.items():
            size_bytes = choice.cut.typical_bytes(total_bytes)
            kind = name.way, name.barrier, len(choice.cut.segments) > 1  # Mixed sizes have other errors.
            cost = WAY_COST if choice.way else CHANGE_COST
            sends_s = changes.new_sends * new_bytes[choice.cut] / question.network.bandwidth
            first_cost = cost + sends_s / choice.iteration_s
            lasts = 0 if choice.warms_up else changes.lasts
            arms.append(Arm(name, choice.iteration_s, size_bytes, kind, first_cost, cost, lasts))
        self.tuner.predict(arms)
        recalled = [one for one in self._recalled if one.name in self.choices]
        if recalled:
            self.tuner.recall((one.name, Belief(one.iteration_s, one.error, 0)) for one in recalled)
            self._recalled = [one for one in self._recalled if one not in recalled]

    def _blocks(self, cut: Cut, total_bytes: int) -> set[tuple[int, int]]:
        """Return (start, bytes) of each block; empty if new blocks cost nothing."""
        if not self._terms.changes.new_sends:
            return set()
        if not self._terms.arena:  # Each gradient has its own partitions, and a new size makes all of them new.
            return {(cut.block_bytes_at(0), total_bytes)}
        blocks = blocks_of([total_bytes], [""], cut)
        return {(block.id, block.size_bytes) for block in blocks}

    def observe(self, name: ArmName, ended: IterationEnd) -> None:
        """Record an iteration, if it ran under one of the arms."""
        if name in self.choices:
            (self.tuner.opened if ended.opens else self.tuner.observe)(name, ended.took_s)

    def proves(self, name: ArmName) -> bool:
        """Return True if this run has proven this arm better than all arms of other ways, and no other arm of its own
        way is worth a trial.
        """
        others = [other for other in self.choices if other.way != name.way]
        better = self.tuner.beliefs()[name].seen > 0 and self.tuner.lead(name, others) > SURELY
        return better and self.tuner.next(name, self.choices.keys() - set(others)).arm == name

    def beliefs(self) -> list[tuple[ArmName, Belief]]:
        """Return the belief about each arm."""
        beliefs = self.tuner.beliefs()
        return [(name, beliefs[name]) for name in self.choices]

    @property
    def status(self) -> tuple[ArmStatus, ...]:
        """Beliefs for display, fastest arm first."""
        arms = [
            ArmStatus(name.cut.segments, name.way, predicted.iteration_s, one.iteration_s, one.error, one.seen)
            for (name, one), predicted in zip(self.beliefs(), self.choices.values(), strict=True)
        ]
        return tuple(sorted(arms, key=lambda arm: arm.believed_s))


def name_of(choice: Choice, question: Question) -> ArmName:
    """Return the name of the arm for this choice, given its question."""
    return ArmName(choice.cut, choice.way, question.barrier)
