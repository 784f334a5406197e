"""Which cut and credit make the shortest iteration: a search among candidates, judged by predictions.

Rule of this file: what is tried, in which order, and when it is enough. Pure; a host gives it a number of events at a
time, so that a decision never holds a thread for long. Sizes are bytes, times seconds.

First come uniform cuts: from a middle size up and down for as long as it gets better. Then, from the best of them, cuts
along the stepwise pattern: a segment for each step's gradients, so that no block goes across the beginning of a step,
and each segment's blocks twice or half as large for as long as that is better. Large blocks cost fewer messages and
stand longer in the way of what is more urgent; what that comes to at each place, the prediction says. Last, for the
best: whether to hold what is less urgent back when gradient 0 is due.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace

from prophet.core.choice import Choice, Measured, Question
from prophet.core.cut import MOST_BLOCK_BYTES, UNIT_BYTES, Cut, Segment, arena_places
from prophet.core.plan import Plan
from prophet.core.steps import find_steps
from prophet.policies.algorithms.predictor import Prediction, Predictor

SIZES = (64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20, 2 << 20, MOST_BLOCK_BYTES)
"""Of uniform cuts' blocks. A factor of two apart is near enough: between neighbours the iteration differs by a few
percent."""
FIRST_SIZE = 512 << 10
IN_FLIGHT = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Credits that are tried, in blocks of the cut's typical size. One block alone idles the wire until it is acknowledged,
and a wire that idles is measured badly."""
FIRST_IN_FLIGHT = 3
PATIENCE = 1
"""A search goes on past so many tries that were no better."""
NEAR = 1.05
"""What is predicted to take more than this much of the best is not followed to its end."""
LEAST_GAIN = 0.003
"""A cut with more segments is kept only if it is better by this share of the iteration."""
MOST_SEGMENTS = 12
"""Of a cut along the pattern; the shortest steps are joined to their neighbours."""
REFINE_EVENTS = 1_000_000
"""Of the simulation, that are spent on cuts along the pattern: they are seldom worth 1%, and the job waits."""
AS_GOOD = 0.002
"""Predictions within this share of the best are as good."""
UNEXPLAINED = 0.02
"""What an iteration takes longer than predicted by more than this is put down to messages."""
LEAST_MESSAGE_S, MOST_MESSAGE_S = 0.05e-3, 0.5e-3
"""What a message takes of processors, at the least and at the most; it is seldom less than a few system calls."""
LEAST_IN_FLIGHT_S = 0.5e-3
"""Less than the wire takes in so long is not in flight: a busy machine is late by that much in answering."""
HALVINGS = 5
"""A message's cost is looked for below the first, so many times in one half of what is left."""
SLICE = 20_000
"""Events between two looks at whether to go on."""

Spent = Generator[int, None, None]
"""Work under way; it yields what it took, in events."""


@dataclass
class _Judged:
    """The best credit of a cut so far."""

    credit: int = 0
    iteration_s: float = math.inf


@dataclass
class ChoiceSearch:
    """The search for one question. `hold` makes the plan with deadlines of a choice, None where there are none."""

    question: Question
    hold: Callable[[Choice], Plan | None]
    _judged: dict[Cut, _Judged] = field(default_factory=dict)
    _held: Choice | None = None

    def __post_init__(self) -> None:
        question = self.question
        self._predictor = Predictor(question.profile, question.network, question.shape, question.arena)
        self._predictor.message_s = LEAST_MESSAGE_S
        self._steps = self._search()

    def work(self, events: int) -> bool:
        """Goes on for about so many of the simulation's events; whether it has come to an end."""
        for spent in self._steps:
            events -= spent
            if events <= 0:
                return False
        return True

    @property
    def choices(self) -> Sequence[Choice]:
        """One for each cut that was judged, the best first; of those as good as it, the one with the largest blocks.

        A message also takes processor time of workers and servers, which no event tells from computing.
        """
        rows = [Choice(cut, row.credit, False, row.iteration_s) for cut, row in self._judged.items() if row.credit]
        if self._held is not None:
            rows = [self._held if row.cut == self._held.cut else row for row in rows]
        as_good_s = self._best_s * (1 + AS_GOOD)
        total = self.question.profile.total_bytes

        def rank(choice: Choice) -> tuple[bool, float]:
            good = choice.iteration_s <= as_good_s
            return not good, -choice.cut.typical_bytes(total) if good else choice.iteration_s

        return sorted(rows, key=rank)

    @property
    def _best_s(self) -> float:
        return min((row.iteration_s for row in self._judged.values()), default=math.inf)

    def _search(self) -> Spent:
        measured = self.question.measured
        if measured is not None:
            yield from self._explain(measured)
        for cut in self.question.cuts:
            yield from self._judge(cut, math.inf)
        if self.question.anew:
            yield from self._uniform()
            if self.question.arena:
                yield from self._along_the_pattern()
        choices = self.choices
        if choices and (plan := self.hold(choices[0])) is not None:
            prediction = self._predictor.begin(choices[0].cut, choices[0].credit, plan)
            yield from self._follow(prediction, choices[0].iteration_s)
            # A hold is a bet on a moment.
            if prediction.iteration_s < choices[0].iteration_s * (1 - LEAST_GAIN):
                self._held = replace(choices[0], deadlines=True, iteration_s=prediction.iteration_s)

    def _explain(self, measured: Measured) -> Spent:
        """Takes what no event says to be as explains best what the job does now.

        That is how wide the servers' links are; and where the iteration takes longer than either width explains, what
        messages cost besides. On the wire they may cost nothing, and still each takes processor time of workers and
        servers, which lengthens an iteration where processors are short.
        """

        def predicted() -> Generator[int, None, float]:
            prediction = self._predictor.begin(measured.cut, measured.credit)
            yield from self._follow(prediction, math.inf)
            return prediction.iteration_s

        seconds = {}
        for wide in (False, True):
            self._predictor.wide_servers = wide
            seconds[wide] = yield from predicted()
        wide = min((False, True), key=lambda wide: abs(seconds[wide] - measured.iteration_s))
        self._predictor.wide_servers = wide
        if measured.iteration_s < seconds[wide] * (1 + UNEXPLAINED):
            return
        least_s, most_s = 0.0, MOST_MESSAGE_S
        for _ in range(HALVINGS):
            self._predictor.message_s = (least_s + most_s) / 2
            if (yield from predicted()) < measured.iteration_s:
                least_s = self._predictor.message_s
            else:
                most_s = self._predictor.message_s
        # What even the most does not explain has another cause too, such as a slower worker. Blocks that are too large
        # cost little then, and blocks that are too small would cost much where it was messages after all.
        self._predictor.message_s = max(LEAST_MESSAGE_S, least_s)

    def _uniform(self) -> Spent:
        total = self.question.profile.total_bytes
        sizes = [size for size in SIZES if size <= max(total, SIZES[0])]
        middle = sizes.index(FIRST_SIZE) if FIRST_SIZE in sizes else len(sizes) - 1
        yield from self._judge(Cut.uniform(sizes[middle]), math.inf)
        for direction in (1, -1):
            worse, place = 0, middle + direction
            while 0 <= place < len(sizes) and worse <= PATIENCE:
                before = self._best_s
                yield from self._judge(Cut.uniform(sizes[place]), NEAR)
                worse = 0 if self._best_s < before else worse + 1
                place += direction

    def _along_the_pattern(self) -> Spent:
        best = self.choices[0]
        if len(best.cut.segments) > 1:
            uniform = [choice for choice in self.choices if len(choice.cut.segments) == 1]
            best = uniform[0]
        starts = self._starts()
        if len(starts) < 2:
            return
        sizes = [best.cut.block_bytes_at(0)] * len(starts)
        tried = {}

        def cut_of(sizes: Sequence[int]) -> Cut:
            return Cut(tuple(Segment(start, size) for start, size in zip(starts, sizes, strict=True)))

        spent = 0

        def judge(sizes: Sequence[int], credit: int, most_s: float) -> Spent:
            nonlocal spent
            tried[tuple(sizes), credit] = math.inf
            if spent > REFINE_EVENTS:
                return
            prediction = self._predictor.begin(cut_of(sizes), credit)
            yield from self._follow(prediction, most_s)
            tried[tuple(sizes), credit] = prediction.iteration_s
            spent += prediction.cost

        credit = best.credit
        yield from judge(sizes, credit, math.inf)
        least_s = tried[tuple(sizes), credit]
        better = True
        while better:
            better = False
            for place in range(len(starts)):
                for factor in (2, 0.5):
                    size = _rounded(sizes[place] * factor)
                    other = [*sizes[:place], size, *sizes[place + 1 :]]
                    too_large = IN_FLIGHT[0] * size > credit
                    if size == sizes[place] or too_large or (tuple(other), credit) in tried:
                        continue
                    yield from judge(other, credit, least_s)
                    if tried[tuple(other), credit] < least_s * (1 - LEAST_GAIN / 4):
                        sizes, least_s, better = other, tried[tuple(other), credit], True
            for factor in (0.75, 1.5):
                other_credit = int(credit * factor)
                if (tuple(sizes), other_credit) in tried or other_credit < IN_FLIGHT[0] * max(sizes):
                    continue
                yield from judge(sizes, other_credit, least_s)
                if tried[tuple(sizes), other_credit] < least_s * (1 - LEAST_GAIN / 4):
                    credit, least_s, better = other_credit, tried[tuple(sizes), other_credit], True
        if least_s < best.iteration_s * (1 - LEAST_GAIN):
            self._judged[cut_of(sizes)] = _Judged(credit, least_s)

    def _starts(self) -> list[int]:
        """Where the gradients of each step begin in the arena, rounded; at most MOST_SEGMENTS."""
        profile = self.question.profile
        places = arena_places(gradient.size_bytes for gradient in profile.gradients)
        starts = sorted({places[step.first] // UNIT_BYTES * UNIT_BYTES for step in find_steps(profile)} | {0})
        while len(starts) > MOST_SEGMENTS:
            ends = [*starts[1:], places[-1]]
            lengths = [end - start for start, end in zip(starts, ends, strict=True)]
            shortest = min(range(1, len(starts)), key=lengths.__getitem__)
            del starts[shortest]
        return starts

    def _judge(self, cut: Cut, near: float) -> Spent:
        """Finds the best credit of a cut: from a few blocks up and down for as long as it gets better."""
        if cut in self._judged:
            return
        row = self._judged[cut] = _Judged()
        block_bytes = cut.typical_bytes(self.question.profile.total_bytes)
        least = LEAST_IN_FLIGHT_S * self.question.network.bandwidth
        enough = (place for place, count in enumerate(IN_FLIGHT) if count * block_bytes >= least)
        middle = max(IN_FLIGHT.index(FIRST_IN_FLIGHT), next(enough, len(IN_FLIGHT) - 1))
        done: dict[int, float] = {}
        for direction in (1, -1):
            worse, place = 0, middle if direction > 0 else middle - 1
            while 0 <= place < len(IN_FLIGHT) and worse <= PATIENCE:
                credit = IN_FLIGHT[place] * block_bytes
                if credit < least and row.credit:
                    break
                prediction = self._predictor.begin(cut, credit)
                yield from self._follow(prediction, min(self._best_s * near, row.iteration_s))
                done[credit] = prediction.iteration_s
                if prediction.iteration_s < row.iteration_s:
                    row.credit, row.iteration_s, worse = credit, prediction.iteration_s, 0
                else:
                    worse += 1
                place += direction

    def _follow(self, prediction: Prediction, most_s: float) -> Spent:
        spent = 0
        over = False
        while not over:
            over = prediction.run(SLICE, most_s)
            yield prediction.cost - spent
            spent = prediction.cost


def _rounded(size: float) -> int:
    """The nearest of SIZES."""
    return min(SIZES, key=lambda known: abs(math.log(known / size)))
