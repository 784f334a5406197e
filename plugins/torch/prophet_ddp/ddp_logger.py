"""Log entries of DistributedDataParallel for a module under Prophet, and the buckets that torch's reducer would have.

Rule of this file: the entries of `_get_ddp_logging_data()` that do not change from one iteration to the next: those of
the construction, which torch's own logger has recorded, and later errors and choices. Times and buckets are torch's
reducer's, so a program that asks for them gets that reducer (reducer.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch._C import _distributed_c10d as c10d

from prophet_scheduler.frontends.torch import compiled

if TYPE_CHECKING:
    from prophet_ddp.rounds import ModuleRounds
    from prophet_scheduler.frontends.torch.slot import Slot


class DdpLogger(c10d.Logger):
    """torch's Logger as DistributedDataParallel's own methods call it; names and signatures are torch's.

    `torch_logger` belongs to the reducer that Prophet replaces. torch's functions accept this object as their own
    Logger, since it has a native one below it, for a reducer of one number.
    """

    def __init__(self, rounds: ModuleRounds, torch_logger: Any, ddp: Any) -> None:
        one = torch.nn.Parameter(torch.zeros(1, device="cpu"))
        super().__init__(c10d.Reducer([one], [[0]], [1], ddp.process_group))
        data = torch_logger._get_ddp_logging_data()
        self._strs: dict[str, str] = dict(data.strs_map)
        self._ints: dict[str, int] = dict(data.ints_map)
        self._rounds = rounds
        self._places = {slot: place for place, slot in enumerate(rounds.registered)}
        config = getattr(ddp, "_bucket_config", None)  # since torch 2.13
        first: Any = c10d._DEFAULT_FIRST_BUCKET_BYTES if config is None else config.first_bucket_bytes_cap
        own = () if config is None else config.per_bucket_bytes_caps
        self._limits = list(own) or [first, ddp.bucket_bytes_cap]
        self.iteration = 0
        """Number of synchronised forward passes that have begun."""
        self._order: list[int] | None = None
        """Parameters, by place, in the order of the buckets that torch's reducer would have rebuilt; None before."""
        self._unused: list[Slot] | None = None
        self.graph_static = True
        """True if every iteration has left the same parameters unused."""
        # Hidden from torch.compile, which may compile DistributedDataParallel itself: torch's logger is not Python.
        compiled.hide(DdpLogger, ("set_runtime_stats_and_log",))

    def set_construction_data_and_log(self, *args: Any) -> None:
        """Do nothing: torch's own logger has recorded the construction."""

    def set_runtime_stats_and_log(self) -> None:
        """Count a synchronised forward pass that begins."""
        self.iteration += 1

    def set_error_and_log(self, error: str) -> None:
        """Record the error that ended a pass."""
        self._strs["error"] = error
        self._ints |= {"has_error": 1, "iteration": self.iteration}

    def _set_comm_hook_name(self, comm_hook: str) -> None:
        self._strs["comm_hook"] = comm_hook

    def _set_uneven_input_join(self) -> None:
        self._ints["join_uneven_inputs"] = 1

    def _set_static_graph(self) -> None:
        self._ints["static_graph"] = 1

    def _get_ddp_logging_data(self) -> Any:
        native = super()._get_ddp_logging_data()  # Errors in torch's functions are recorded there.
        error = {"error": native.strs_map["error"]} if "error" in native.strs_map else {}
        has_error = {"has_error": 1} if error else {}
        return SimpleNamespace(strs_map=self._strs | error, ints_map=self._ints | has_error)

    # Events of the reducer.

    def forward_ended(self) -> None:
        """Record the parameters that have no part in forward's outputs."""
        if self._rounds.uses.found:
            before, self._unused = self._unused, list(self._rounds.uses.unused)
            if self.graph_static and before not in (None, self._unused):
                self.graph_static = False
                self._ints |= {"can_set_static_graph": 0, "iteration": self.iteration}

    def buckets_change(self) -> bool:
        """Fix the order of the buckets after the first round that shows it, and return True: torch rebuilds its buckets
        here. Else return False.
        """
        uses = self._rounds.uses
        # The first round of a static graph only counts gradients.
        if self._order is not None or uses.found or self._rounds.pace.ended <= uses.counted or not uses.came:
            return False
        self._order = list(dict.fromkeys(self._places[slot] for slot in (*uses.came, *self._places)))
        return True

    def buckets(self, order: Sequence[int]) -> Sequence[Sequence[int]]:
        """Return torch's buckets for gradients generated in this order, as lists of parameters by place."""
        slots = self._rounds.registered
        buckets, _ = c10d._compute_bucket_assignment_by_size(
            [slots[place].param for place in order], self._limits, [False] * len(order), list(order)
        )
        return list(buckets)

    def copied_back(self) -> Sequence[int]:
        """Return the parameters, by place, in the order in which torch's reducer copies averages to `.grad`."""
        if self._order is not None:
            return self._order
        registered = list(self._places.values())
        return list(chain(*reversed(self.buckets(registered)))) if self._rounds.uses.found else registered
