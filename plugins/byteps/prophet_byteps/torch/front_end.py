"""The PyTorch front end: BytePS's DistributedOptimizer without the barrier in step().

Rule of this file: what the program sees, i.e. the function, the optimizer it returns, and when BytePS's
own is used instead. Stock BytePS waits in step() until every averaged gradient is there. Here step()
returns at once, and each parameter is updated, by the program's own torch.optim optimizer, when it is next
used; the next forward pass starts while later layers' gradients are still on the wire. The values are the
same bits; updates.py and buckets.py say why, guards.py what counts as a use, and
docs/decisions/step-without-barrier.md why it is done so.

Gradients have ids in the order of `named_parameters`, which is the order of registration and usually of
the forward pass.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any, SupportsIndex

import torch

from prophet_byteps import agreement, hook
from prophet_byteps.torch import guards as torch_guards
from prophet_byteps.torch import references
from prophet_byteps.torch.keys import Engine, logger, warn_once
from prophet_byteps.torch.updates import Updates

OLDEST_TORCH = (2, 4)
"""The first with all that the front end calls (`torch.is_autocast_enabled(device_type)` is the newest)."""
EXIT_PATIENCE_S = 5.0
"""A process that ends waits so long for transfers that do not move, since other workers may need them."""


def install(bps: Any, fusion: bool = True, agreement: Any = agreement) -> None:
    """Replaces `bps.DistributedOptimizer`, where `bps` is the module byteps.torch.

    `fusion` lets small gradients travel together; for `agreement` see Engine. Nothing else changes until an optimizer
    is wrapped.
    """
    original = bps.DistributedOptimizer
    engine = Engine(bps, hook.wait_activity, hook.progress, agreement)
    hook.set_identity("priority")
    _finish_before_shutdown(bps)

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
                engine.announce(f"with BytePS's barrier, since {reason}" if reason else "with BytePS's barrier")
            return original(optimizer, named, compression, backward_passes_per_step)  # type: ignore[no-any-return]
        return _wrap(optimizer, named or [], engine, backward_passes_per_step, fusion)

    bps.DistributedOptimizer = distributed_optimizer


def _why_not(bps: Any, optimizer: torch.optim.Optimizer, named: list[Any] | None, compression: Any) -> str | None:
    """Why BytePS's own optimizer must serve, "" where that needs no warning, None where ours can."""
    step_owner = next(cls for cls in type(optimizer).__mro__ if "step" in vars(cls))
    own_step: Any = vars(optimizer).get("step")
    names = [pair[0] for pair in named or [] if isinstance(pair, tuple)]
    if bps.size() == 1 or len(set(names)) != len(named or []):
        return ""  # Nothing to send; or an error, which BytePS's own checks report.
    if compression is not bps.Compression.none:
        return "it compresses gradients"
    if int(os.environ.get("BYTEPS_ENABLE_ASYNC", "0")) != 0:
        return "BYTEPS_ENABLE_ASYNC is set"
    if "byteps.torch.cross_barrier" in sys.modules:
        return "byteps.torch.cross_barrier is in use"
    foreign_step = own_step is not None and not hasattr(own_step, "_wrapped_by_lr_sched")
    if not f"{step_owner.__module__}.".startswith("torch.optim.") or foreign_step:
        return f"{type(optimizer).__name__} has a step() that is not of torch.optim"
    if isinstance(optimizer, torch.optim.LBFGS | torch.optim.SparseAdam):
        return f"{type(optimizer).__name__} cannot update one parameter at a time"
    if any(group.get("differentiable") for group in optimizer.param_groups):
        return "it is differentiable"
    params = [id(param) for group in optimizer.param_groups for param in group["params"]]
    if len(set(params)) != len(params):
        return "a parameter is in it twice"
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < OLDEST_TORCH:
        return f"torch {torch.__version__} is older than {OLDEST_TORCH[0]}.{OLDEST_TORCH[1]}"
    return None


def _finish_before_shutdown(bps: Any) -> None:
    """Nobody shuts BytePS down, or ends the process, while other workers need what we still send."""

    def finish() -> None:
        for owner in torch_guards.owners():
            if not owner.flush(EXIT_PATIENCE_S):
                logger.warning("updates were still to come when the job ended, and nothing moved any more")
                break

    def finishing(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            finish()
            try:
                return original(*args, **kwargs)
            finally:
                hook.reset()

        return wrapper

    def resuming(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            for owner in torch_guards.owners():
                owner.restart()
            return result

        return wrapper

    bps.shutdown = finishing(bps.shutdown)
    bps.suspend = finishing(bps.suspend)
    bps.resume = resuming(bps.resume)
    atexit.register(finish)  # After bps.init() registered BytePS's shutdown, so it runs before that.


def _wrap(
    optimizer: torch.optim.Optimizer, named: list[tuple[str, torch.Tensor]], engine: Engine, passes: int, fusion: bool
) -> torch.optim.Optimizer:
    """An object of a subclass of the optimizer's own class, sharing its groups and its state."""
    user_class = type(optimizer)
    # As BytePS names it: broadcast_optimizer_state recognises a wrapped optimizer by its module.
    namespace = {**_METHODS, "__module__": engine.bps.DistributedOptimizer.__module__}
    wrapped_class = type(user_class.__name__, (user_class,), namespace)
    wrapped: Any = object.__new__(wrapped_class)
    # Without a scheduler's wrapper around step(), which is bound to the optimizer it was made for.
    vars(wrapped).update({key: value for key, value in vars(optimizer).items() if key != "step"})
    trainable = {id(p): p for group in optimizer.param_groups for p in group["params"] if p.requires_grad}
    chosen = [(name, trainable.pop(id(param))) for name, param in named if id(param) in trainable]
    wrapped._prophet = Updates(wrapped, user_class, chosen, list(trainable.values()), engine, passes, fusion)
    for group in optimizer.param_groups:
        group["params"] = torch_guards.GroupParameters(group["params"])
    return wrapped  # type: ignore[no-any-return]


class _Methods:
    """What the returned optimizer does otherwise than the class it extends."""

    _prophet: Updates

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Hands this round's gradients to the network. With a closure, or hooks around it, it also waits."""
        return self._prophet.step(closure)

    step.hooked = True  # type: ignore[attr-defined]  # torch runs step hooks around the inner step, once.

    def synchronize(self) -> None:
        """Waits for all averaged gradients and puts them in `.grad`; the next step() uses what is there then."""
        self._prophet.synchronize()

    def finish_updates(self) -> None:
        """Waits for the updates of the last step() and sends nothing, so that one worker may call it alone."""
        self._prophet.flush()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clears gradients, for which no update has to be waited for."""
        with references.blind():
            super(type(self), self).zero_grad(set_to_none)  # type: ignore[misc]

    @property
    def state(self) -> Any:
        """The optimizer's state by parameter, after all updates."""
        if not self._prophet.stepping:
            self._prophet.flush()
        return vars(self)["state"]

    @state.setter
    def state(self, value: Any) -> None:
        vars(self)["state"] = value

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Within it, step() is the optimizer's own, on the gradients as they are."""
        self._prophet.should_synchronize = False
        try:
            yield
        finally:
            self._prophet.should_synchronize = True

    def set_backward_passes_per_step(self, passes: int) -> None:
        """From now on a gradient leaves after `passes` backward passes."""
        self._prophet.set_passes(passes)

    def state_dict(self) -> dict[str, Any]:
        self._prophet.flush()
        return super(type(self), self).state_dict()  # type: ignore[misc,no-any-return]

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._prophet.flush()
        super(type(self), self).load_state_dict(state_dict)  # type: ignore[misc]

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        self._prophet.flush()
        super(type(self), self).add_param_group(param_group)  # type: ignore[misc]
        added = self.param_groups[-1]  # type: ignore[attr-defined]
        added["params"] = torch_guards.GroupParameters(added["params"])
        warn_once("gradients of parameters added after the optimizer was wrapped are not averaged (nor by BytePS)")

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        """A copy, also a pickled one, is a plain optimizer of the class that was wrapped."""
        self._prophet.flush()
        return object.__new__, (type(self).__mro__[1],), self.__getstate__()


_METHODS = {
    name: value for name, value in vars(_Methods).items() if name not in ("__dict__", "__weakref__", "__annotations__")
}
