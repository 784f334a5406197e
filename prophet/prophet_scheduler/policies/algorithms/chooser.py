"""Search for the cut and the credit with the shortest predicted iteration.

Rule of this file: what to try, in which order, and when to stop. Pure code; the host grants it a number of events at a
time, so that a decision never holds a thread for long. Sizes are in bytes, times in seconds.

The search tries blocks of one size along the arena, from a middle size up and down as long as the prediction improves,
and several credits with each. Large blocks need fewer messages but block more urgent ones for longer; the prediction
weighs the two.

Two ideas were tried here and removed because they gained nothing (docs/results/ablation.md): blocks of several sizes
along the stepwise pattern, and holding back less urgent blocks when gradient 0 is due.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence

from prophet_scheduler.core.choice import Choice, Measured, Question
from prophet_scheduler.core.cut import MOST_BLOCK_BYTES, Cut
from prophet_scheduler.policies.algorithms.predictor import Prediction, Predictor

SIZES = (64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20, 2 << 20, MOST_BLOCK_BYTES)
"""Block sizes of uniform cuts. Factors of two suffice: iterations of neighbouring sizes differ by a few percent."""
FIRST_SIZE = 512 << 10
IN_FLIGHT = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Credits to try, in blocks of the cut's typical size. A single block would leave the wire idle until it is
acknowledged, and an idle wire is measured badly."""
FIRST_IN_FLIGHT = 3
PATIENCE = 1
"""Trials without a gain that end a search in one direction."""
NEAR = 1.15
"""Multiple of the best prediction at which another is given up. Larger blocks are pursued up to this multiple of the
job's present iteration: if that is longer than predicted, messages may cost more than predictions assume."""
AS_GOOD = 0.01
"""Predictions within this share of the best count as equal. Sizes a factor of eight apart often have predictions this
close, and the cost of a message is not known well enough to tell them apart."""
UNEXPLAINED = 0.02
"""Minimum relative difference between an iteration and its prediction that changes the assumed cost of messages."""
LIKELY_MESSAGE_S = 0.2e-3
"""Processor time of a message before any iteration shows it."""
LEAST_MESSAGE_S, MOST_MESSAGE_S = 0.05e-3, 0.5e-3
"""Bounds of that time. If something else is the bottleneck, iterations hide it, and smaller blocks would seem free."""
LEAST_IN_FLIGHT_S = 0.5e-3
"""Minimum credit, in seconds on the wire: a busy machine may answer this late."""
HALVINGS = 5
"""Number of bisection steps in the search for a message's cost."""
SLICE = 20_000
"""Events between two checks of whether to continue."""

Spent = Generator[int, None, None]
"""Work in progress; it yields its cost in events."""


class ChoiceSearch:
    """The search for one question."""

    def __init__(self, question: Question) -> None:
        self.question = question
        self._judged: dict[Cut, Choice] = {}
        """The best credit of each cut so far; 0 if none was predicted to the end."""
        self._predictor = Predictor(
            question.profile, question.network, question.shape, question.arena, barrier=question.barrier
        )
        self._predictor.message_s = LIKELY_MESSAGE_S if question.message_s is None else question.message_s
        self._steps = self._search()

    def work(self, events: int) -> bool:
        """Continue for about this many simulated events. Return True once the search has finished."""
        for spent in self._steps:
            events -= spent
            if events <= 0:
                return False
        return True

    @property
    def choices(self) -> Sequence[Choice]:
        """A choice for each cut judged so far, best first; among equals those with the largest blocks first.

        A message also takes processor time on workers and servers, which events cannot tell from computing.
        """
        return ranked([choice for choice in self._judged.values() if choice.credit], self.question.profile.total_bytes)

    @property
    def message_s(self) -> float:
        return self._predictor.message_s

    @property
    def _best_s(self) -> float:
        return min((choice.iteration_s for choice in self._judged.values()), default=math.inf)

    def _search(self) -> Spent:
        measured = self.question.measured
        if measured is not None:
            yield from self._explain(measured)
        for cut in self.question.cuts:
            yield from self._judge(cut, math.inf)
        if self.question.anew:
            yield from self._uniform()

    def _explain(self, measured: Measured) -> Spent:
        """Infer from the job's present iterations what no event shows: the width of the servers' links, and the
        processor time of a message if neither width explains them.

        A message that costs nothing on the wire still takes processor time on workers and servers. If processors are
        scarce, iterations take longer.
        """
        seconds = {}
        for wide in (False, True):
            self._predictor.wide_servers = wide
            seconds[wide] = yield from self._predicted_s(measured)
        wide = min((False, True), key=lambda wide: abs(seconds[wide] - measured.iteration_s))
        self._predictor.wide_servers = wide
        if abs(measured.iteration_s - seconds[wide]) > UNEXPLAINED * seconds[wide]:
            self._predictor.message_s = yield from self._message_s(measured)

    def _message_s(self, measured: Measured) -> Generator[int, None, float]:
        """Return the cost of a message that explains the iteration, within its bounds.

        If even the upper bound does not, there is another cause, such as a slower worker. Blocks that are too large
        cost little then, whereas blocks that are too small would cost much if messages were the cause after all.
        """
        least_s, most_s = 0.0, MOST_MESSAGE_S
        for _ in range(HALVINGS):
            self._predictor.message_s = (least_s + most_s) / 2
            if (yield from self._predicted_s(measured)) < measured.iteration_s:
                least_s = self._predictor.message_s
            else:
                most_s = self._predictor.message_s
        return max(LEAST_MESSAGE_S, least_s)

    def _predicted_s(self, measured: Measured) -> Generator[int, None, float]:
        prediction = self._predictor.begin(measured.cut, measured.credit)
        yield from self._follow(prediction, math.inf)
        return prediction.iteration_s

    def _uniform(self) -> Spent:
        total = self.question.profile.total_bytes
        sizes = [size for size in SIZES if size <= max(total, SIZES[0])]
        middle = sizes.index(FIRST_SIZE) if FIRST_SIZE in sizes else len(sizes) - 1
        yield from self._judge(Cut.uniform(sizes[middle]), math.inf)
        measured = self.question.measured
        takes_s = NEAR * measured.iteration_s if measured is not None else 0.0
        for direction, least_s in ((1, takes_s), (-1, 0.0)):
            worse, place = 0, middle + direction
            while 0 <= place < len(sizes) and worse <= PATIENCE:
                cut, before = Cut.uniform(sizes[place]), self._best_s
                place += direction
                if cut in self._judged:
                    continue  # It was judged because the job has used it, which says nothing about the sizes beyond.
                yield from self._judge(cut, NEAR, least_s)
                worse = 0 if self._best_s < before else worse + 1

    def _judge(self, cut: Cut, near: float, least_s: float = 0.0) -> Spent:
        """Find the best credit of a cut, going up and down from a few blocks as long as it improves. On a long delay,
        start from the number of blocks that covers it: far fewer are all too bad to show a direction.

        Give up a prediction beyond both `near` times the best and `least_s`.
        """
        if cut in self._judged:
            return
        best = self._judged[cut] = Choice(cut, 0, math.inf)
        block_bytes = cut.typical_bytes(self.question.profile.total_bytes)
        network = self.question.network
        least = LEAST_IN_FLIGHT_S * network.bandwidth
        first = max(FIRST_IN_FLIGHT, least / block_bytes, network.to_cover_delay(block_bytes))
        middle = next((place for place, count in enumerate(IN_FLIGHT) if count >= first), len(IN_FLIGHT) - 1)
        for direction in (1, -1):
            worse, place = 0, middle if direction > 0 else middle - 1
            while 0 <= place < len(IN_FLIGHT) and worse <= PATIENCE:
                credit = IN_FLIGHT[place] * block_bytes
                if credit < least and best.credit:
                    break
                prediction = self._predictor.begin(cut, credit)
                yield from self._follow(prediction, min(max(self._best_s * near, least_s), best.iteration_s))
                worse += 1
                if prediction.iteration_s < best.iteration_s:
                    best = self._judged[cut] = Choice(cut, credit, prediction.iteration_s)
                    worse = 0
                place += direction

    def _follow(self, prediction: Prediction, most_s: float) -> Spent:
        spent, over = 0, False
        while not over:
            over = prediction.run(SLICE, most_s)
            yield prediction.cost - spent
            spent = prediction.cost


def ranked(choices: Sequence[Choice], total_bytes: int) -> list[Choice]:
    """Return the choices, best first; among equals those with the largest, and therefore fewest, blocks first."""
    as_good_s = min((choice.iteration_s for choice in choices), default=math.inf) * (1 + AS_GOOD)

    def rank(choice: Choice) -> tuple[bool, float]:
        good = choice.iteration_s <= as_good_s
        return not good, -choice.cut.typical_bytes(total_bytes) if good else choice.iteration_s

    return sorted(choices, key=rank)
