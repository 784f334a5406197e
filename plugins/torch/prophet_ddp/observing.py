"""Observation of DistributedDataParallel with torch's own reducer: PROPHET_SCHEDULER=observe.

Rule of this file: reading what torch measures anyway, in a thread beside the job. learn/observed.py has the arithmetic,
and another process predicts what would help (lab/advice_observed.py).

torch's logger times some iterations, both computing and averages. Its reducer times each gradient of every iteration.
So the job gets no hook, and its reducer works as it does without Prophet. Ranks tell each other through the job's store
how long they waited. No rank ever waits for another there.

A failure in here is one warning, and the job goes on.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import functools
import json
import os
import subprocess
import sys
import time
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store, _get_default_store

from prophet_ddp.environment import own_host, settings_for
from prophet_ddp.records import ModuleRecord, Records
from prophet_scheduler.core.events import EVENT_DTYPE
from prophet_scheduler.core.settings import PREFIX, Settings
from prophet_scheduler.core.status import Observed
from prophet_scheduler.core.units import format_size
from prophet_scheduler.frontends.ending import at_end, say
from prophet_scheduler.frontends.notices import logger, speaks, warn_of_unknown_variables, warning_instead
from prophet_scheduler.frontends.records import require_records
from prophet_scheduler.frontends.turning import TurningThread
from prophet_scheduler.learn.observed import TimedIteration, in_forward_order, times_of
from prophet_scheduler.watch import training

TIMED_FIRST = 10
"""Number of first iterations of which torch times each."""
SAMPLE_RATES = {"cpu": 5, "gpu": 100}
"""Later torch times one iteration in this many. On processors that costs some microseconds. On GPUs timing waits for
the device, so they keep torch's default."""
TOLD_EACH = 10
"""Number of first samples that ranks share at once; later they share every TOLD_S."""
COST_SHARE = 0.002
"""Share of a core that observation may take."""
LONGEST_PAUSE_S = 1.0
TOLD_S = 1.0
"""Seconds between two later exchanges of how long ranks waited."""
NEWEST = 100
"""Number of newest samples that count."""
END_LIMIT_S = 1.0
"""Maximum wait at the end of the process for a turn in progress, in seconds."""
ADVICE_LIMIT_S = 60.0
"""Time limit of the prediction at the end of the process, in seconds."""
HALF_HOOKS = ("fp16_compress_hook", "bf16_compress_hook", "BuiltinCommHookType.FP16_COMPRESS")
WHOLE_HOOKS = ("", "allreduce_hook", "BuiltinCommHookType.ALLREDUCE")
RANK, SHRUNK_AT_LEAST = 1, 2
"""PowerSGD's matrix_approximation_rank, and its min_compression_rate, by default."""
NOT_OBSERVED = "Prophet does not observe this job"
NO_EVENTS = np.zeros(0, EVENT_DTYPE)

_modules = 0
_watch: ModuleWatch | None = None


@functools.cache
def settings() -> Settings:
    """Return this process's settings; a wrong one ends it."""
    return settings_for("DistributedDataParallel", require_records)


def take_over(ddp: Any, told: Settings, synced: bool = True) -> None:
    """Watch the process's first module from now on. The module does not change."""
    global _modules, _watch
    with warning_instead(NOT_OBSERVED):
        if ddp.process_group.size() == 1:
            return
        _modules += 1
        if _watch is None:
            _watch = ModuleWatch(ddp, told)
            _watch.begin(told)


class ObservedModel(abc.ABC):
    """Watch of one model on `rank` of `ranks` ranks. `name` is alike on all of them, and different for each model. A
    thread processes the timed iterations.
    """

    def __init__(self, name: str, rank: int, ranks: int, told: Settings) -> None:
        self._rank, self._ranks = rank, ranks
        self._says = told.says and rank == 0
        life = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        self._store: Store = PrefixStore(f"prophet/observed/{life}/{name}", _get_default_store())
        self._looks: deque[TimedIteration] = deque(maxlen=NEWEST)
        self._others: Sequence[Mapping[int, float]] = ()
        self._host = own_host()
        self._one_host = False
        self._told_s = 0.0
        self._record = ModuleRecord()
        self.thread = TurningThread(self._turn, self._pause_s, self._failed, "prophet-observe")
        self._records = Records(self.thread)
        speaks(rank == 0)
        if rank == 0:
            warn_of_unknown_variables(os.environ)

    @abc.abstractmethod
    def observed(self) -> Observed:
        """Return everything seen so far. Thread-safe."""

    @abc.abstractmethod
    def _pause_s(self) -> float:
        """Return the seconds until the thread's next turn."""

    @abc.abstractmethod
    def _turn(self) -> None:
        """Process what was timed."""

    def begin(self, told: Settings) -> None:
        """Start watching."""
        self._records.begin(told)
        if self._rank == 0:
            self._record.observed = self.observed
        self._records.follow(self._record, self._ranks)
        at_end(self._end)
        self.thread.start()

    def _note(self, look: TimedIteration) -> None:
        if self._looks:
            before = self._looks[-1]
            count = look.iteration - before.iteration
            for place in range(1, count + 1):  # The observer counts all ends: space those between two samples evenly.
                end_s = before.begun_s + (look.begun_s - before.begun_s) * place / count
                training.iteration_ended(self, end_s)
        self._looks.append(look)

    def _tell(self) -> None:
        now = time.monotonic()
        if len(self._looks) > TOLD_EACH and now - self._told_s < TOLD_S:
            return
        self._told_s = now
        self._exchange()

    def _exchange(self) -> None:
        """Tell the first rank how long this one has waited. The first rank reads the others' times once all are there.

        At the end of a job the store may be gone.
        """
        others = [str(rank) for rank in range(1, self._ranks)]
        with contextlib.suppress(RuntimeError):
            if self._rank != 0:
                waits = [(look.iteration, look.waited_s) for look in self._looks]
                self._store.set(str(self._rank), json.dumps([self._host, waits]))
            elif self._store.check(others):
                said = [json.loads(self._store.get(rank)) for rank in others]
                self._others = [dict(waits) for _, waits in said]
                self._one_host = all(host == self._host for host, _ in said)

    def _seen(self) -> Observed:
        """Return the times so far, without anything on gradients."""
        looks = list(self._looks)
        times = times_of(looks, self._others)
        return Observed(self._ranks, looks[-1].iteration if looks else 0, times, one_host=self._one_host)

    def _failed(self, error: Exception) -> None:
        logger.warning("Prophet no longer observes this job: %s: %s", type(error).__name__, error)

    def _end(self) -> None:
        """Stop watching. The first rank prints what was seen and what would help."""
        try:
            if not self.thread.end(END_LIMIT_S):
                return
            self._turn()
            self._exchange()
            if self._says:
                for line in advice_on(self.observed()):
                    say(line)
        except Exception as error:
            logger.warning("Prophet cannot say what would help: %s: %s", type(error).__name__, error)


class ModuleWatch(ObservedModel):
    """Watch of one module of DistributedDataParallel, which torch times."""

    def __init__(self, ddp: Any, told: Settings) -> None:
        group: dist.ProcessGroup = ddp.process_group
        super().__init__(group.group_name, group.rank(), group.size(), told)
        self._ddp = weakref.ref(ddp)
        parameters, _ = ddp._build_params_for_reducer()
        self._bytes = [param.numel() * param.element_size() for param in parameters]
        self._low_rank_bytes = [_low_rank_bytes(param) for param in parameters]
        default_buckets = getattr(ddp, "bucket_bytes_cap_default", False)
        self._bucket_bytes = None if default_buckets else int(ddp.bucket_bytes_cap)
        self._backend = str(dist.get_backend(group))
        self._no_prophet = ""
        if self._rank == 0:
            from prophet_ddp.takeover import why_not  # The first rank alone needs it.

            self._no_prophet = why_not(ddp, group, told) or ""
        self._rate = SAMPLE_RATES["cpu" if ddp.device_type == "cpu" else "gpu"]
        ddp._set_ddp_runtime_logging_sample_rate(self._rate)
        self._made_ns: deque[Sequence[int]] = deque(maxlen=NEWEST)
        self._hook = ""
        self._turns = 0

    def begin(self, told: Settings) -> None:
        """Start watching, and say so on the first rank."""
        super().begin(told)
        if self._says:
            size = format_size(sum(self._bytes))
            say(f"observes DistributedDataParallel over {self._backend}, {self._ranks} ranks, {size} an iteration")

    def _pause_s(self) -> float:
        if (each_s := self._each_s()) is None:
            return self._cheap_s()
        if self._looks[-1].iteration < TIMED_FIRST:
            return min(LONGEST_PAUSE_S, each_s / 2)
        return max(self._cheap_s(), min(LONGEST_PAUSE_S, self._rate * each_s / 2))

    def _cheap_s(self) -> float:
        """Return the pause with which turns take COST_SHARE of a core."""
        return self.thread.busy_s / max(1, self._turns) / COST_SHARE

    def _each_s(self) -> float | None:
        """Return the duration of an iteration between the last two samples, in seconds; None before there are two."""
        if len(self._looks) < 2:
            return None
        before, newest = self._looks[-2], self._looks[-1]
        return (newest.begun_s - before.begun_s) / (newest.iteration - before.iteration)

    def _space(self, ddp: Any) -> None:
        """Have torch time fewer iterations if it times more than the thread reads. Ranks then still see the same ones:
        of any two ranks' rates, one is a multiple of the other.
        """
        each_s = self._each_s()
        if each_s is not None and self._looks[-1].iteration >= TIMED_FIRST and self._rate * each_s < self._cheap_s():
            self._rate *= 2
            ddp._set_ddp_runtime_logging_sample_rate(self._rate)

    def _turn(self) -> None:
        self._turns += 1
        ddp = self._ddp()
        if ddp is None:
            self.thread.stop()
            return
        if (look := self._newest(ddp)) is not None:
            self._note(look)
            self._space(ddp)
            self._made_ns.append(ddp.reducer.get_backward_stats() if self._rank == 0 else ())
            self._tell()
        self._record.keep(NO_EVENTS)

    def _newest(self, ddp: Any) -> TimedIteration | None:
        """Return the iteration that torch timed last; None if it is not new."""
        logged = ddp.logger._get_ddp_logging_data()
        ints: dict[str, int] = logged.ints_map
        self._hook = logged.strs_map.get("comm_hook", "")
        iteration, comm_ns = ints.get("iteration", 0), ints.get("backward_comm_time", 0)
        if comm_ns <= 0 or (self._looks and iteration <= self._looks[-1].iteration):
            return None
        waited_ns = max(0, comm_ns - ints["backward_compute_comm_overlap_time"])
        times_ns = ints["forward_compute_time_start"], ints["backward_compute_time"], waited_ns
        return TimedIteration(iteration, *(time_ns / 1e9 for time_ns in times_ns))

    def observed(self) -> Observed:
        """Return everything seen so far. Thread-safe."""
        made_ns, seen = list(self._made_ns), dataclasses.replace(self._seen(), modules=_modules)
        if seen.times is None:
            return seen
        forward, generation_s = in_forward_order(made_ns, seen.times.backward_s)
        return dataclasses.replace(
            seen,
            gradient_bytes=tuple(self._bytes[place] for place in forward),
            generation_s=generation_s,
            low_rank_bytes=tuple(self._low_rank_bytes[place] for place in forward),
            bucket_bytes=self._bucket_bytes,
            half=self._hook in HALF_HOOKS,
            own_hook="" if self._hook in HALF_HOOKS + WHOLE_HOOKS else self._hook,
            no_prophet=self._no_prophet,
        )


def _low_rank_bytes(param: Any) -> int:
    """Return the bytes that PowerSGD sends for a parameter's gradient: two thin matrices if they are much smaller."""
    rows = param.shape[0] if param.dim() > 1 else 1
    columns = param.numel() // max(rows, 1)
    thin = (rows + columns) * RANK
    count = thin if param.dim() > 1 and thin * SHRUNK_AT_LEAST < param.numel() else param.numel()
    return int(count * param.element_size())


def advice_on(seen: Observed) -> list[str]:
    """Return the lines of advice on an observed job. Another process predicts, so this one imports none of it. Raises
    OSError and subprocess.SubprocessError.
    """
    asked = subprocess.run(
        [sys.executable, "-m", "prophet_scheduler.lab.advice_observed"],
        input=json.dumps(dataclasses.asdict(seen)),
        env={name: value for name, value in os.environ.items() if not name.startswith(PREFIX)},
        stdout=subprocess.PIPE,
        text=True,
        timeout=ADVICE_LIMIT_S,
        check=True,
    )
    return asked.stdout.splitlines()
