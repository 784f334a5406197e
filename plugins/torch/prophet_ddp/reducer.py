"""Reducer that DistributedDataParallel finds in place of torch's.

Rule of this file: the methods of torch's Reducer. rounds.py implements them; ddp_logger.py has its logger. A program
may call any of them. A call that Prophet does not serve gives the module back to torch's reducer (HANDED_BACK).

torch's reducer waits for all averages at the end of backward, in a callback queued with a round's last gradient. Later
callbacks of the program find averages in `.grad`. Here the callback does not wait, but `wait_before_callbacks` does.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from prophet_ddp import texts
from prophet_ddp.ddp_logger import DdpLogger
from prophet_ddp.rounds import ModuleRounds
from prophet_scheduler import __version__
from prophet_scheduler.frontends.torch import compiled

HANDED_BACK: Mapping[str, str] = {
    **dict.fromkeys(
        ("_get_zeros_like_grad_buckets", "_run_comm_hook", "_run_allreduce_hook", "_push_all_rebuilt_params"),
        "it is asked for its buckets",
    ),
    "_set_forward_pass_work_handle": "some ranks have more inputs than others",
    "_install_post_backward_futures": "it has to wait for the program's futures",
    "_set_optimizer_in_backward": "an optimizer runs within backward",
    "_autograd_hook": "the program marks its gradients as ready",
    "_set_mixed_precision_param_dtype": "its gradients travel in another type",
    "_set_sparse_metadata": "it has sparse gradients",
    "_reset_state": "its state is reset",
    "_remove_autograd_hooks": "its gradients are no longer averaged",
    "_update_process_group": "it gets another process group",
}
"""Methods that only torch's reducer has, each with the reason why a call gives the module back."""


@functools.cache
def _say_that_none_is_unused() -> None:
    print("Warning:", texts.NONE_UNUSED, file=sys.stderr)  # As torch does, past Python's filters and once a process


class LateReducer:
    """torch's Reducer as DistributedDataParallel's own methods call it; names and signatures are torch's.

    `hand_back(why)` gives the module back to torch's reducer for good, and returns that reducer.
    """

    def __init__(self, rounds: ModuleRounds, logger: DdpLogger, hand_back: Callable[[str], Any]) -> None:
        self.rounds = rounds
        self._logger = logger
        self._hand_back = hand_back
        rounds.logger = logger
        # Hidden from torch.compile, which may compile DistributedDataParallel itself: torch's reducer is not Python.
        compiled.hide(LateReducer, ("prepare_for_forward", "prepare_for_backward", "_rebuild_buckets"))

    def prepare_for_forward(self) -> None:
        """Begin a forward pass whose backward pass averages gradients."""
        self.rounds.forward_begins()

    def prepare_for_backward(self, outputs: Sequence[torch.Tensor]) -> None:
        """End the forward pass. `outputs` is empty unless parameters may be unused."""
        self.rounds.forward_ends(outputs)
        self._logger.forward_ended()
        if self.rounds.uses.found and not self.rounds.uses.unused:
            _say_that_none_is_unused()

    def _delay_all_reduce(self) -> None:
        """Handle the end of the first backward pass of a static graph."""
        self.rounds.static_backward_ends()

    def _rebuild_buckets(self) -> bool:
        """Check that the last round has ended, as torch's reducer does here, and move gradients as it does once."""
        self.rounds.check_finished()
        if self._logger.buckets_change() and self.rounds.terms.in_place:
            self.rounds.move_gradients()
        return False

    def _set_static_graph(self) -> None:
        """Declare the graph static. This is called after construction too, even if the constructor was told."""
        if self._logger.iteration:
            self._logger.set_error_and_log(texts.STATIC_LATE)
            raise RuntimeError(texts.STATIC_LATE)
        if self.rounds.layout.buckets is not None or self.rounds.sparse is not None:
            self._hand_back("its graph is static, and not all of its gradients travel in Prophet's blocks")
        else:
            self.rounds.keep_counts()

    def _check_reducer_finalized(self) -> None:
        self.rounds.check_finished()

    def _set_ddp_runtime_logging_sample_rate(self, sample_rate: int) -> None:
        self._logger.sample_rate = sample_rate

    def set_logger(self, logger: object) -> None:
        """Ignore the call: the logger in place is the one that knows what to log."""

    def _ddp_graph_static(self) -> bool:
        return self._logger.graph_static

    def _get_local_used_map(self) -> torch.Tensor | None:
        return self.rounds.used_by

    def get_backward_stats(self) -> list[int]:
        """Return, by parameter, the nanoseconds from the start of backward to its gradient, as last timed."""
        return list(self._logger.backward_ns)

    def __getattr__(self, name: str) -> Any:
        if name in HANDED_BACK:
            return lambda *args, **kwargs: getattr(self._hand_back(HANDED_BACK[name]), name)(*args, **kwargs)
        raise AttributeError(f"torch's reducer has no {name}, as far as Prophet {__version__} knows")


def wait_before_callbacks(modules: Callable[[], Iterable[ModuleRounds]]) -> None:
    """Wait for averages of these modules before the program's callbacks, where torch's reducer would have waited."""

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
