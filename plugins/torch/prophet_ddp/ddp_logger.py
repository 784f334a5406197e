"""Log entries of DistributedDataParallel for a module under Prophet.

Rule of this file: the entries of `_get_ddp_logging_data()`. Those from construction are torch's own, copied from its
logger. Those of an iteration are recorded where torch records them, in the same units and as often. The entries on
buckets describe those that torch's reducer would have: Prophet's blocks are in its status.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch._C import _distributed_c10d as c10d

from prophet_scheduler.frontends.torch import compiled

if TYPE_CHECKING:
    from prophet_ddp.rounds import ModuleRounds
    from prophet_scheduler.frontends.torch.slot import Slot

FIRST_ITERATIONS = 10
"""torch times each of these, and later one in SAMPLE_RATE."""
SAMPLE_RATE = 100
DURATIONS = (
    "forward_compute_time",
    "backward_compute_time",
    "backward_comm_time",
    "backward_compute_comm_overlap_time",
)


@dataclass
class IterationTimes:
    """Start and end of each part of one iteration, in nanoseconds of the wall clock; 0 if it has not happened."""

    forward_start: int
    backward_start: int = 0
    backward_end: int = 0
    comm_start: int = 0
    comm_end: int = 0
    ready: list[tuple[Slot, int]] = field(default_factory=list)
    """Gradients in the order in which they were generated, each with its time."""

    def gradient_ready(self, slot: Slot) -> None:
        self.ready.append((slot, time.time_ns()))

    def started(self) -> None:
        self.comm_start = self.comm_start or time.time_ns()

    def finished(self) -> None:
        self.comm_end = time.time_ns()

    def durations(self) -> dict[str, int]:
        """Return the known durations, by torch's names."""
        ends = (self.backward_start, self.backward_end, self.comm_end, min(self.backward_end, self.comm_end))
        starts = (self.forward_start, self.backward_start, self.comm_start, self.comm_start)
        rows = zip(DURATIONS, starts, ends, strict=True)
        return {name: end - start for name, start, end in rows if start and end >= start}

    def moments(self) -> dict[str, int]:
        """Return the moments by torch's names."""
        return {
            "forward_compute_time_start": self.forward_start,
            "backward_compute_time_start": self.backward_start,
            "backward_compute_time_end": self.backward_end,
            "backward_comm_time_start": self.comm_start,
            "backward_comm_time_end": self.comm_end,
        }


class Durations:
    """Durations of the last timed iteration, and averages over all, as torch computes them."""

    def __init__(self) -> None:
        self._count = 0
        self._averages: dict[str, int] = {}
        """Averages without those of `_last`."""
        self._last: IterationTimes | None = None

    def take_down(self, ended: IterationTimes | None) -> None:
        """Record an iteration; None if it was not timed."""
        if self._last is not None:
            self._averages = self._averages_with(self._last)
        self._last = ended
        self._count += 1

    def entries(self) -> dict[str, int]:
        """Return durations, averages and moments by torch's names; nothing before the first iteration."""
        if not self._count:
            return {}
        last = self._last or IterationTimes(0)
        durations = dict.fromkeys(DURATIONS, 0) | last.durations()
        averages = {f"avg_{name}": value for name, value in self._averages_with(last).items()}
        return durations | averages | last.moments()

    def _averages_with(self, times: IterationTimes) -> dict[str, int]:
        """Return the averages with these times. An iteration without a duration leaves its average unchanged."""
        before, now = dict.fromkeys(DURATIONS, 0) | self._averages, times.durations()
        count = self._count
        return {name: (now[name] + old * (count - 1)) // count if name in now else old for name, old in before.items()}


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
        self._skips_unused = bool(getattr(ddp, "skip_all_reduce_unused_params", False))
        config = getattr(ddp, "_bucket_config", None)  # since torch 2.13
        first: Any = c10d._DEFAULT_FIRST_BUCKET_BYTES if config is None else config.first_bucket_bytes_cap
        own = () if config is None else config.per_bucket_bytes_caps
        self._limits = list(own) or [first, ddp.bucket_bytes_cap]
        self.sample_rate = SAMPLE_RATE
        self.iteration = 0
        """Number of synchronised forward passes that have begun."""
        self._durations = Durations()
        self.times: IterationTimes | None = None
        """Times of this iteration; None if it is not timed."""
        self._ended: IterationTimes | None = None
        """Times of the last iteration; None if it was not timed."""
        self._order: list[int] | None = None
        """Parameters, by place, in the order of the buckets that torch's reducer would have rebuilt; None before."""
        self._unused: list[Slot] | None = None
        self.graph_static = True
        """True if every iteration has left the same parameters unused."""
        self.backward_ns = [0] * len(self._places)
        """Nanoseconds by place, from the start of backward to the gradient, in the last timed iteration."""
        # Hidden from torch.compile, which may compile DistributedDataParallel itself: torch's logger is not Python.
        compiled.hide(DdpLogger, ("set_runtime_stats_and_log",))

    def set_construction_data_and_log(self, *args: Any) -> None:
        """Do nothing: torch's own logger has recorded the construction."""

    def set_runtime_stats_and_log(self) -> None:
        """Record the last iteration before a synchronised forward pass begins."""
        self._ended, self.times = self.times, None
        if self._collects():
            self._take_down(self._ended)
        self.iteration += 1
        if self._collects():
            self.times = IterationTimes(time.time_ns())

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
        """Return what is known by now, without waiting for averages."""
        native = super()._get_ddp_logging_data()  # Errors in torch's functions are recorded there.
        error = {"error": native.strs_map["error"]} if "error" in native.strs_map else {}
        has_error = {"has_error": 1} if error else {}
        return SimpleNamespace(strs_map=self._strs | error, ints_map=self._ints | self._durations.entries() | has_error)

    # Events of the reducer.

    def forward_ended(self) -> None:
        """Record the end of forward, and the parameters that have no part in its outputs."""
        times = self.times
        if times is not None:
            times.backward_start = time.time_ns()
        if self._rounds.uses.found:
            before, self._unused = self._unused, list(self._rounds.uses.unused)
            if self.graph_static and before not in (None, self._unused):
                self.graph_static = False
                self._ints |= {"can_set_static_graph": 0, "iteration": self.iteration}

    def buckets_change(self) -> bool:
        """Fix the order of the buckets after the first iteration that has one, and return True: torch rebuilds its
        buckets here. Else return False.
        """
        ended = next((each for each in (self.times, self._ended) if each is not None and each.backward_end), None)
        if self._order is None and not self._rounds.uses.found and ended is not None:
            came = [self._places[slot] for slot, _ in ended.ready]
            if came:
                self._order = list(dict.fromkeys([*came, *self._places.values()]))
                return True
        return False

    # How entries are computed.

    def _collects(self) -> bool:
        early = self.iteration <= FIRST_ITERATIONS
        return self.iteration > 0 and (early or self.iteration % self.sample_rate == 0)

    def _take_down(self, ended: IterationTimes | None) -> None:
        self._durations.take_down(ended)
        unused = self._rounds.uses.unused if self._unused is None else self._unused
        if not self._rounds.resting:
            whole = ended is not None and ended.backward_end and ended.ready
            self._ints["num_buckets_reduced"] = self._reduced(unused) if whole else 0
        self._ints |= {
            "iteration": self.iteration,
            "unused_parameter_size": sum(slot.param.nbytes for slot in unused),
            "has_rebuilt_buckets": int(self._order is not None),
        }
        if c10d.get_debug_level() == c10d.DebugLevel.DETAIL:
            # torch prints these entries then, and so creates missing ones.
            self._strs.setdefault("comm_hook", "")
            self._ints.setdefault("join_uneven_inputs", 0)
        if self._order is not None:
            buckets = self.buckets(self._order)
            self._strs["rebuilt_bucket_sizes"] = ", ".join(str(self._size(bucket)) for bucket in buckets)
            self._strs["rebuilt_per_bucket_param_indices"] = ", ".join(_joined(bucket, " ") for bucket in buckets)
        if ended is not None and ended.ready:
            came = [self._places[slot] for slot, _ in ended.ready]
            self._strs["prev_iteration_grad_ready_order_indices"] = _joined(came, ", ")
            for slot, at_ns in ended.ready:
                self.backward_ns[self._places[slot]] = at_ns - ended.backward_start

    def _reduced(self, unused: Sequence[Slot]) -> int:
        """Return the number of buckets that torch's reducer would have sent."""
        if self._order is not None:
            return len(self.buckets(self._order))
        if not self._skips_unused:
            return len(self._strs["bucket_sizes"].split(","))
        without = {self._places[slot] for slot in unused}
        return sum(not without.issuperset(bucket) for bucket in self.buckets(list(self._places.values())))

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

    def _size(self, bucket: Sequence[int]) -> int:
        return sum(self._rounds.registered[place].param.nbytes for place in bucket)


def _joined(places: Sequence[int], between: str) -> str:
    return between.join(str(place) for place in places)
