"""Noise of iteration times, as a tuner needs it. Pure: times come in."""

from __future__ import annotations

import math


class Noise:
    """Noise of iteration times, from the steps between neighbours under one arm: drift of the job cancels out of them.

    `expected`: deviation of a time's logarithm before any is measured, which counts as
    `known_after` iterations. `alike_after`: pairs of iterations that the expectation of independence counts as. `far`:
    deviations beyond which a step from one iteration to the next is clipped.
    """

    def __init__(self, expected: float, known_after: float, alike_after: float, far: float) -> None:
        self._far = far
        self._count = known_after
        self._squares = self._count * expected**2
        self._alike_after = alike_after
        self._products = self._pairs = 0.0
        self._before: float | None = None
        self._step: float | None = None

    def add(self, log: float, anew: bool) -> None:
        """Take in the logarithm of an iteration's time; `anew` if it is the arm's first or contains the cost of going
        there.
        """
        before, self._before = self._before, None if anew else log
        if anew or before is None:
            self._step = None
            return
        half = self._squares / self._count
        step = min(max(log - before, -self._far * math.sqrt(2 * half)), self._far * math.sqrt(2 * half))
        self._count += 1
        self._squares += step**2 / 2
        if self._step is not None:
            self._products += step * self._step
            self._pairs += (step**2 + self._step**2) / 4
        self._step = step

    @property
    def variance(self) -> float:
        """Variance of an iteration among others: larger than its own where neighbours are slow together.

        Let iterations have variance s^2, with correlation r between neighbours, r^2 at distance 2, and so on. For steps
        d between neighbours, the mean of d^2 / 2 is s^2 (1 - r), and the mean of d d' is -s^2 (1 - r)^2.
        """
        half = self._squares / self._count
        doubt = self._alike_after * half
        alike = min(0.6, max(-0.4, 1 + (self._products - doubt) / (self._pairs + doubt)))
        return half * (1 + alike) / (1 - alike) ** 2
