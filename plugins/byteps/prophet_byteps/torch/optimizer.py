"""The optimizer that `DistributedOptimizer` returns: a subclass of the program's own, whose step() does not wait.

Rule of this file: how this object differs from the class it extends. front_end.py decides when it is made.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any, SupportsIndex, cast

import torch

from prophet_byteps.torch.keys import Engine, leave_zeros
from prophet_byteps.torch.rounds import OptimizerRounds
from prophet_scheduler.frontends.notices import warn_once
from prophet_scheduler.frontends.torch import compiled
from prophet_scheduler.frontends.torch.optimizer import begin, methods_of, updates_of


def wrap(
    optimizer: torch.optim.Optimizer,
    named: list[tuple[str, torch.Tensor]],
    engine: Engine,
    passes: int,
    fusion: bool,
    half: torch.dtype | None = None,
) -> torch.optim.Optimizer:
    """Return an instance of a subclass of the optimizer's class, made from its groups. `half`: see OptimizerRounds."""
    user_class = type(optimizer)
    compiled.hide(_Methods, ("step", "synchronize", "finish_updates"))
    # BytePS's module name, since broadcast_optimizer_state recognises a wrapped optimizer by it.
    namespace = {**methods_of(_Methods), "__module__": engine.bps.DistributedOptimizer.__module__}
    # As torch does to the step() of BytePS's class: hooks run around this step() and again around the inner one.
    namespace["step"] = torch.optim.Optimizer.profile_hook_step(namespace["step"])
    namespace["step"].hooked = True
    wrapped_class = type(user_class.__name__, (user_class,), namespace)
    wrapped: Any = object.__new__(wrapped_class)
    vars(wrapped).update(_made_anew(optimizer))
    trainable = {id(p): p for group in optimizer.param_groups for p in group["params"] if p.requires_grad}
    leave_zeros(trainable.values())
    chosen = [(name, trainable.pop(id(param))) for name, param in named if id(param) in trainable]
    rounds = OptimizerRounds(wrapped, user_class, chosen, list(trainable.values()), engine, passes, fusion, half)
    begin(wrapped, rounds)
    weakref.finalize(wrapped, rounds.dropped).atexit = False
    return wrapped  # type: ignore[no-any-return]


def _made_anew(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return the attributes of an optimizer recreated from this one's groups, as BytePS creates its own.

    State, defaults and hooks of the old one stay behind. If the class needs more than groups, BytePS fails; here the
    new optimizer takes over everything.
    """
    user_class: Any = type(optimizer)
    anew: torch.optim.Optimizer = object.__new__(user_class)
    try:
        user_class.__init__(anew, optimizer.param_groups)
    except TypeError:
        # Except a learning-rate scheduler's wrapper around step(), which is bound to the old optimizer.
        return {key: value for key, value in vars(optimizer).items() if key != "step"}
    return vars(anew)


class _Methods:
    """Methods in which the returned optimizer differs from the class it extends."""

    @property
    def _prophet(self) -> Any:
        return updates_of(cast(torch.optim.Optimizer, self))

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Send this round's gradients. With a closure, or hooks around step(), also wait for their averages."""
        return self._prophet.step(closure)

    def synchronize(self) -> None:
        """Wait for all averaged gradients and put them in `.grad`. As with BytePS's, a step() after it averages `.grad`
        once more, except within skip_synchronize().
        """
        self._prophet.synchronize()

    def finish_updates(self) -> None:
        """Wait for the updates of the last step(). This sends nothing, so one worker may call it alone."""
        self._prophet.flush()

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Within the context, make step() the optimizer's own, on the gradients as they are."""
        self._prophet.should_synchronize = False
        try:
            yield
        finally:
            self._prophet.should_synchronize = True

    @property
    def backward_passes_per_step(self) -> int:
        """Number of backward passes in a round. Setting it counts from the next round on."""
        return self._prophet.passes  # type: ignore[no-any-return]

    @backward_passes_per_step.setter
    def backward_passes_per_step(self, passes: int) -> None:
        self._prophet.passes = passes

    def set_backward_passes_per_step(self, passes: int) -> None:
        """From now on, this round included, send a gradient after `passes` backward passes."""
        self._prophet.set_passes(passes)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super(type(self), self).add_param_group(param_group)  # type: ignore[misc]
        warn_once("gradients of parameters added after the optimizer was wrapped are not averaged (nor by BytePS)")

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        """Make copies and pickles plain optimizers of the class that was extended."""
        return object.__new__, (type(self).__mro__[1],), self.__getstate__()
