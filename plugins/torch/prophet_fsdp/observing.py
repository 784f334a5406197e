"""Observation of FSDP2 with its own collectives: PROPHET_SCHEDULER=observe.

Rule of this file: timing the collectives that FSDP2 calls, and the start and end of each forward pass, without changing
them. prophet_ddp/observing.py has the thread and the lines, learn/observed.py the arithmetic.

A failure in here is one warning, and the job goes on.
"""

from __future__ import annotations

import functools
import os
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp._fully_shard import _fsdp_collectives

from prophet_ddp.observing import LONGEST_PAUSE_S, NEWEST, NO_EVENTS, NOT_OBSERVED, TOLD_EACH, ObservedModel, settings
from prophet_scheduler.core.settings import Settings
from prophet_scheduler.core.status import Observed
from prophet_scheduler.core.units import format_size
from prophet_scheduler.frontends.ending import say
from prophet_scheduler.frontends.notices import warning_instead
from prophet_scheduler.frontends.torch.references import in_backward
from prophet_scheduler.learn.observed import BackwardPass, Collective, ShardedIterations, in_forward_order, message_s

__all__ = ["settings", "take_over"]

TIMED = {
    "all_gather_into_tensor": Collective.GATHER,
    "all_gather_single": Collective.GATHER,
    "reduce_scatter_tensor": Collective.REDUCE,
    "reduce_scatter_single": Collective.REDUCE,
    "all_reduce": Collective.ALL_REDUCE,
}
"""Functions of torch.distributed that FSDP2 calls, under their names in several releases."""

_watch: ShardedWatch | None = None


def take_over(module: Any, told: Settings) -> None:
    """Watch the modules that `fully_shard` makes from now on. What they do does not change."""
    global _watch
    with warning_instead(NOT_OBSERVED):
        state = module._get_fsdp_state()
        if _watch is None and state._fsdp_param_groups:
            mesh = state._fsdp_param_groups[0].mesh_info.mesh.mesh.flatten().tolist()
            if len(mesh) == 1:
                return
            _watch = ShardedWatch(state, sorted(mesh), told)
            _watch.begin(told)
        if _watch is not None:
            _watch.follow(module)


class ShardedWatch(ObservedModel):
    """Watch of all sharded modules of this process, whose data moves among these `ranks`."""

    def __init__(self, state: Any, ranks: list[int], told: Settings) -> None:
        place = ranks.index(dist.get_rank())
        super().__init__(f"sharded/{','.join(map(str, ranks))}", place, len(ranks), told)
        self._no_prophet = ""
        if self._rank == 0:
            from prophet_fsdp.takeover import why_not  # Only the first rank needs it.

            self._no_prophet = why_not(state) or ""
        self._iterations = ShardedIterations()
        self._passes: deque[BackwardPass] = deque(maxlen=NEWEST)
        self._timed: deque[Any] = deque(maxlen=NEWEST)
        """Iterations that the thread has yet to process."""
        on_host = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        self._on_host = on_host if self._ranks % on_host == 0 and on_host < self._ranks else 1
        self._shards = 1
        self._half = False
        self._backend = ""
        self._said = False

    def begin(self, told: Settings) -> None:
        """Start watching."""
        waited = functools.partial(self._safely, self._waited)
        vars(_fsdp_collectives)["dist"] = _TimedDistributed(vars(_fsdp_collectives)["dist"], waited)
        super().begin(told)

    def follow(self, module: torch.nn.Module) -> None:
        """Record from now on when this module's forward pass begins and ends."""
        module.register_forward_pre_hook(lambda *_: self._safely(self._forward_begins, time.monotonic()))
        module.register_forward_hook(lambda *_: self._safely(self._forward_ends, time.monotonic()))

    def _safely(self, note: Callable[..., None], *what: Any) -> None:
        """Record something in a thread of the program, which must not get our errors. The first one ends the watch."""
        if self.thread.stopped:
            return
        try:
            note(*what)
        except Exception as error:
            self.thread.stop()
            self._failed(error)

    def _forward_begins(self, now: float) -> None:
        if in_backward():  # Activation checkpointing computes it again.
            return
        if (found := self._iterations.forward_begins(now)) is not None:
            self._timed.append(found)
            if found[0].iteration < TOLD_EACH:
                self.thread.wake()

    def _forward_ends(self, now: float) -> None:
        if not in_backward():
            self._iterations.forward_ends(now)

    def _waited(self, what: Collective, begun_s: float, tensors: list[torch.Tensor], group: Any) -> None:
        ended_s, backward = time.monotonic(), in_backward()
        if what is Collective.GATHER:
            self._shards = group.size()
        elif not self._backend:
            self._backend, self._half = str(dist.get_backend(group)), tensors[0].element_size() == 2
        if not backward:
            self._forward_begins(begun_s)
        self._iterations.waited(what, max(tensor.nbytes for tensor in tensors), begun_s, ended_s, backward)

    def _pause_s(self) -> float:
        return LONGEST_PAUSE_S

    def _turn(self) -> None:
        while self._timed:
            timed, passed = self._timed.popleft()
            self._note(timed)
            self._passes.append(passed)
            if not self._said and self._says:
                size = format_size(sum(passed.sizes))
                say(f"observes FSDP2 over {self._backend}, {self._ranks} ranks, {size} of gradients an iteration")
            self._said = True
        if self._looks:
            self._tell()
        self._record.keep(NO_EVENTS)

    def observed(self) -> Observed:
        """Return everything seen so far. Thread-safe."""
        passes, seen = list(self._passes), self._seen()
        if seen.times is None:
            return seen
        newest = passes[-1]
        alike = [each for each in passes if each.sizes == newest.sizes]
        forward, generation_s = in_forward_order([each.made_s for each in alike], seen.times.backward_s)
        whole = 2 if self._half else 1
        replicas = self._ranks // self._shards
        return replace(
            seen,
            gradient_bytes=tuple(newest.sizes[place] * whole for place in forward),
            generation_s=generation_s,
            half=self._half,
            no_prophet=self._no_prophet,
            shards=self._shards,
            keep=2 * newest.again < len(forward),
            on_host=self._on_host,
            message_s=message_s(alike, replicas if replicas > 1 else self._shards),
        )


class _TimedDistributed:
    """torch.distributed as FSDP2's collectives see it; reports each wait for a collective to `waited`."""

    def __init__(self, inner: Any, waited: Callable[[Collective, float, list[torch.Tensor], Any], None]) -> None:
        self._inner = inner
        self._waited = waited

    def __getattr__(self, name: str) -> Any:
        call, what = getattr(self._inner, name), TIMED.get(name)
        if what is None:
            return call

        def timed(*args: Any, **kwargs: Any) -> Any:
            begun_s = time.monotonic()
            work = call(*args, **kwargs)
            tensors = [each for each in (*args, *kwargs.values()) if isinstance(each, torch.Tensor)]

            def waited(begun_s: float) -> None:
                self._waited(what, begun_s, tensors, kwargs.get("group"))

            if work is None:
                waited(begun_s)
                return None
            return _TimedWork(work, waited)

        return timed


class _TimedWork(dist.Work):
    """torch's Work of a collective in flight; reports each wait for it, with the wait's start."""

    def __init__(self, work: Any, waited: Callable[[float], None]) -> None:
        super().__init__()
        self._work = work
        self._waited = waited

    def wait(self, *args: Any, **kwargs: Any) -> bool:
        begun_s = time.monotonic()
        result: bool = self._work.wait(*args, **kwargs)
        self._waited(begun_s)
        return result
