"""What DistributedDataParallel finds in place of torch's reducer and its logger.

Rule of this file: the methods that torch's Python code calls on them, and what they come to. What they mean is
rounds.py's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from prophet.frontends.torch import compiled
from prophet_ddp.rounds import ModuleRounds


class LateReducer:
    """torch's Reducer as DistributedDataParallel's own methods call it; names and signatures are torch's."""

    def __init__(self, rounds: ModuleRounds) -> None:
        self.rounds = rounds
        # Where DistributedDataParallel itself is compiled, torch's own reducer is no Python that could be.
        compiled.hide(LateReducer, ("prepare_for_forward", "prepare_for_backward", "_rebuild_buckets"))

    def prepare_for_forward(self) -> None:
        """A forward pass begins that ends in a synchronised backward."""
        self.rounds.forward_begins()

    def prepare_for_backward(self, outputs: Sequence[torch.Tensor]) -> None:
        """It has ended. `outputs` are given where parameters may be unused."""
        self.rounds.forward_ends(outputs)

    def _delay_all_reduce(self) -> None:
        """The first backward pass of a static graph has ended."""
        self.rounds.static_backward_ends()

    def _rebuild_buckets(self) -> bool:
        return False  # there are none

    def _set_static_graph(self) -> None:
        """Said after the constructor too, also where that has said it."""
        self.rounds.keep_counts()

    def _remove_autograd_hooks(self) -> None:
        self.rounds.remove()

    def _check_reducer_finalized(self) -> None:
        self.rounds.forward_begins()

    def _set_ddp_runtime_logging_sample_rate(self, rate: int) -> None:
        """Nothing is logged."""

    def __getattr__(self, name: str) -> Any:
        # What else torch may ask for, its own reducer has: DistributedDataParallel as it is from here on.
        raise AttributeError(
            f"Prophet's stand-in for torch's reducer has no {name}; train without PROPHET_SCHEDULER, or report it"
        )


class _LoggingData:
    strs_map: dict[str, str]
    ints_map: dict[str, int]

    def __init__(self) -> None:
        self.strs_map, self.ints_map = {}, {}


class SilentLogger:
    """torch's Logger, which needs its Reducer: what is said to it is dropped."""

    def _get_ddp_logging_data(self) -> _LoggingData:
        return _LoggingData()

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args, **kwargs: None
