"""Learning rates for asynchronous training that follow the delays of its updates (MLfabric, sections 3.1 and 10.4).

Rule of this file: the formula, and a PyTorch scheduler around it.

An update applied long after the weights from which it was computed is worth less, and does harm if its step is long. A
constant rate has to be small enough for the worst possible delay. This rate (AdaDelay, cited in the paper as [31]) is
smaller only for late updates. With it the expected loss falls as in Eq. 3. If delays stay within a narrow range, as
with a delay bound, the loss falls faster by a factor (Eq. 4).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch


def delay_adaptive(largest: float, constant: float, step: int, delay: int) -> float:
    """Return the learning rate 1 / (L + c sqrt(t + tau)) of section 10.4.

    `largest` is 1 / L, the longest step that the smoothness of the loss allows. `constant` is c. `step` is t, the
    number of updates in the model. `delay` is tau, in versions. Raises ValueError for impossible values.
    """
    if not 0 < largest < math.inf or not 0 <= constant < math.inf:
        raise ValueError(f"largest rate {largest}, constant {constant}: give numbers above 0, and 0 or more")
    if step < 0 or delay < 0:
        raise ValueError(f"step {step}, delay {delay}: give numbers of 0 or more")
    return 1.0 / (1.0 / largest + constant * math.sqrt(step + delay))


class DelayAdaptiveLR(torch.optim.lr_scheduler.LRScheduler):
    """Scheduler that sets each group's rate by `delay_adaptive`, with the group's initial rate as the largest.

    It is for an optimizer of asynchronous training under Prophet: t and tau are its version and the delay of its last
    update. `observe`, if given, returns both instead. Call `step()` after each `optimizer.step()`.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        constant: float,
        observe: Callable[[], tuple[int, int]] | None = None,
        last_epoch: int = -1,
    ) -> None:
        self.constant = constant
        rounds: Any = getattr(optimizer, "asynchronous", None)
        if observe is None and rounds is None:
            raise ValueError("the optimizer trains synchronously, so it has no delays; leave this scheduler out")
        self._observe = observe if observe is not None else lambda: (rounds.version, rounds.delay)
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float | torch.Tensor]:
        step, delay = self._observe()
        return [delay_adaptive(float(base), self.constant, step, delay) for base in self.base_lrs]

    def state_dict(self) -> dict[str, Any]:
        """Return the state without `observe`, which belongs to this process."""
        return {key: value for key, value in super().state_dict().items() if key != "_observe"}
