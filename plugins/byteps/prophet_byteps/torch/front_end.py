"""The PyTorch front end: BytePS's DistributedOptimizer and DistributedDataParallel without their barriers.

Rule of this file: the program's view: the function, the optimizer that it returns, and when BytePS's own is used
instead. step() returns at once, and the program's own torch.optim optimizer updates each parameter when it is next used
(docs/decisions/step-without-barrier.md). The results have the same bits: see rounds.py and
prophet_scheduler/frontends/torch.

Gradients have ids in the order of `named_parameters`, which is usually that of the forward pass. If it is not, the
agent ranks gradients differently (prophet_scheduler/learn/ranks.py).

BytePS's module wrapper, byteps.torch.parallel.DistributedDataParallel, waits at the end of backward instead. It stays
BytePS's own, except for the exchange of its gradients (modules.py).

The code for such an optimizer or module is loaded when the first one is wrapped: a data loader needs none of it.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from prophet_byteps import agreement, hook
from prophet_byteps.meeting import FAILED_PATIENCE_S
from prophet_scheduler.core.settings import in_step
from prophet_scheduler.frontends.ending import finish_first, has_failed
from prophet_scheduler.frontends.notices import logger, warn_once

if TYPE_CHECKING:
    from prophet_byteps.cutting import CutBoard
    from prophet_byteps.torch.keys import Engine
    from prophet_byteps.torch.modules import KeyedModuleRounds
    from prophet_byteps.torch.rounds import OptimizerRounds

CROSS_BARRIER = "byteps.torch.cross_barrier"
EXIT_PATIENCE_S = 5.0
"""Seconds that a process waits for averages while nothing moves, once all workers are at their end (meeting.py). It
waits longer if a block has yet to be sent, or BytePS holds it until all workers have its key: others need the block,
and BytePS's shutdown would drop it."""
MOST_PATIENCE_S = 300.0
"""Maximum seconds of these waits together: a server that is gone acknowledges nothing."""


def install(bps: Any, fusion: bool = True, agreement: Any = agreement, board: CutBoard | None = None) -> None:
    """Replace `bps.DistributedOptimizer`; `bps` is the module byteps.torch.

    `fusion` lets small gradients travel together. `agreement` and `board`: see Engine.
    """
    original = bps.DistributedOptimizer

    @functools.cache
    def engine() -> Engine:
        from prophet_byteps.torch.keys import Engine

        return Engine(bps, agreement, board)

    _finish_before_shutdown(bps, engine)

    @functools.wraps(original)
    def distributed_optimizer(
        optimizer: torch.optim.Optimizer,
        named_parameters: Any = None,
        compression: Any = bps.Compression.none,
        backward_passes_per_step: int = 1,
    ) -> torch.optim.Optimizer:
        named = None if named_parameters is None else list(named_parameters)
        reason = _why_not(bps, optimizer, named, compression)
        if reason is not None:
            if reason:
                warn_once(f"this optimizer keeps BytePS's barrier: {reason}")
            if bps.size() > 1:
                what = f"with BytePS's barrier, since {reason}" if reason else "with BytePS's barrier"
                engine().announce(engine().take_number(), what)
            stock: Any = original(optimizer, named, compression, backward_passes_per_step)
            own_pushes = sys.modules.get("prophet_byteps.torch.own_pushes")
            if CROSS_BARRIER in sys.modules and own_pushes is not None:
                names = [name for name, _ in named] if named else stock._parameter_names.values()
                own_pushes.in_forward_order(f"Gradient.{name}" for name in names)
            return stock  # type: ignore[no-any-return]
        from prophet_byteps.torch.optimizer import wrap

        half = _half_of(bps, compression)
        return wrap(optimizer, named or [], engine(), backward_passes_per_step, fusion, half)

    bps.DistributedOptimizer = distributed_optimizer
    _install_modules(bps, engine, fusion)


def _install_modules(bps: Any, engine: Callable[[], Engine], fusion: bool) -> None:
    """Do the same for BytePS's module wrapper, if this BytePS has one."""
    name: str = bps.__name__
    if sys.modules.get(name) is not bps:
        return
    try:
        parallel: Any = importlib.import_module(f"{name}.parallel.distributed")
    except ImportError:
        return
    wrapper_class = parallel.DistributedDataParallel
    register, synchronize = wrapper_class._register_hooks, wrapper_class.synchronize

    @functools.wraps(register)
    def register_hooks(self: Any) -> None:
        reason = _why_not_here(bps, self._compression) or _why_not_loaded("modules")
        if reason is not None:
            warn_once(f"this module keeps BytePS's barrier: {reason}")
            engine().announce(engine().take_number(), f"a module with BytePS's barrier, since {reason}")
            register(self)
            return
        from prophet_byteps.torch import modules

        modules.average(self, engine(), fusion, _half_of(bps, self._compression))

    @functools.wraps(synchronize)
    def synchronize_rounds(self: Any) -> None:
        modules = sys.modules.get("prophet_byteps.torch.modules")
        rounds = modules.rounds_of(self) if modules is not None else None
        if rounds is None:
            synchronize(self)
        else:
            rounds.synchronize()

    wrapper_class._register_hooks = register_hooks
    wrapper_class.synchronize = synchronize_rounds


def _half_of(bps: Any, compression: Any) -> torch.dtype | None:
    """Return the type to which this compression of BytePS rounds gradients; None for no compression."""
    return None if compression is bps.Compression.none else torch.float16


def _why_not(bps: Any, optimizer: torch.optim.Optimizer, named: list[Any] | None, compression: Any) -> str | None:
    """Return why BytePS's own optimizer must be used; "" if that needs no warning; None if Prophet's can be used."""
    names = [pair[0] for pair in named or [] if isinstance(pair, tuple)]
    if bps.size() == 1 or len(set(names)) != len(named or []):
        return ""  # Nothing to send, or an error that BytePS's own checks report.
    reason = _why_not_here(bps, compression)
    if reason is not None:
        return reason
    from prophet_scheduler.frontends.torch.optimizer import why_not_late

    return why_not_late(optimizer) or _why_not_loaded("optimizer")


def _why_not_loaded(name: str) -> str | None:
    """Load a part of this package. Return why it cannot be loaded; None if it was."""
    try:
        importlib.import_module(f"prophet_byteps.torch.{name}")
    except Exception as error:
        return f"Prophet's cannot be loaded ({type(error).__name__}: {error})"
    return None


def _why_not_here(bps: Any, compression: Any) -> str | None:
    """Return why Prophet's cannot be used, for reasons other than the optimizer itself; None if it can."""
    if compression not in (bps.Compression.none, bps.Compression.fp16):
        return "it uses a compression other than fp16"
    if not in_step(os.environ):
        return "BYTEPS_ENABLE_ASYNC is set"
    if CROSS_BARRIER in sys.modules:
        return f"{CROSS_BARRIER} is in use"
    return None


def _owners() -> list[OptimizerRounds | KeyedModuleRounds]:
    """Return all rounds that travel over BytePS. The process may also have modules of another engine."""
    guards = sys.modules.get("prophet_scheduler.frontends.torch.guards")
    if guards is None:
        return []
    from prophet_byteps.torch.modules import KeyedModuleRounds
    from prophet_byteps.torch.rounds import OptimizerRounds

    return [owner for owner in guards.owners() if isinstance(owner, OptimizerRounds | KeyedModuleRounds)]


def _finish_before_shutdown(bps: Any, engine: Callable[[], Engine]) -> None:
    """Make BytePS's shutdown and the end of the process wait until everything that other workers need is sent."""

    def finish() -> None:
        patience_s = FAILED_PATIENCE_S if has_failed() else EXIT_PATIENCE_S
        still_s = 0.0
        for owner in _owners():
            while not owner.flush(patience_s):
                still_s += patience_s
                if still_s >= MOST_PATIENCE_S or not (hook.sending() or engine().opening):
                    logger.warning("updates were still outstanding when the job ended, and nothing moved any more")
                    for each in _owners():
                        each.expect_nothing()
                    return

    resume = bps.resume

    @functools.wraps(resume)
    def resume_and_restart(*args: Any, **kwargs: Any) -> Any:
        result = resume(*args, **kwargs)
        for owner in _owners():
            owner.restart()
        return result

    finish_first(bps, finish, hook.reset)
    bps.resume = resume_and_restart
