"""PyTorch's front end in tests: an engine of a few lines, and the cleaning between two tests of one process."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from prophet_scheduler.frontends.torch import guards, references
from prophet_scheduler.frontends.torch.awaited import ANY, AwaitedRounds
from prophet_scheduler.frontends.torch.life import END, PROMISE, move
from prophet_scheduler.frontends.torch.slot import Slot
from prophet_scheduler.frontends.torch.streams import streams_of


class LateRounds(AwaitedRounds):
    """Rounds whose averages are `times` the gradients, and whose updates come only on demand."""

    barrier = False  # type: ignore[assignment]

    def __init__(self, model: nn.Module, times: float = 1.0) -> None:
        super().__init__(model.named_parameters(), 1)
        self._times = times
        for slot in self.slots:
            slot.view = torch.zeros_like(slot.param)
            slot.streams = streams_of(torch.device("cpu"))
        self.watch()

    def _gradient_ready(self, slot: Slot, *_gradient: Any) -> None:
        assert slot.param.grad is not None
        torch.mul(slot.param.grad, self._times, out=slot.view)
        slot.see(slot.param.grad)
        move((slot,), PROMISE)
        move((slot,), END)
        self._fresh = ANY

    def arrived(self, slot: Slot) -> bool:
        return True

    def landed(self, slot: Slot) -> bool:
        return False  # so that updates come only on demand


def forget() -> None:
    """Clear all that a test left pending or watched, before the next one."""
    guards.pending.clear()
    guards._learning.clear()
    references.stop_here(for_good=True)
