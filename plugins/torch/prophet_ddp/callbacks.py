"""Callbacks that the program queues for the end of a backward pass: the later ones find averages in `.grad`.

Rule of this file: torch's engine as the program calls it within backward. torch's reducer waits for all averages in a
callback of its own, which is queued with a round's last gradient. rounds.py queues one there that waits for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from prophet_ddp.rounds import ModuleRounds


def install(modules: Callable[[], Iterable[ModuleRounds]]) -> None:
    """Wait for averages of these modules before the program's callbacks, where torch's reducer would have."""

    class Engine(torch._C._ImperativeEngine):
        def queue_callback(self, callback: Callable[[], Any]) -> None:
            def run() -> None:
                for rounds in sorted(modules(), key=lambda rounds: rounds.number):  # in the same order on all ranks
                    if rounds.pace.closed:
                        rounds.backward_ends()
                        rounds.settle(rounds.slots)
                callback()

            super().queue_callback(run)

    torch.autograd.Variable._execution_engine = Engine()  # type: ignore[attr-defined]
