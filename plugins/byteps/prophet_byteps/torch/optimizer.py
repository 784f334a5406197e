"""The optimizer that a program gets from `DistributedOptimizer`: one of its own class, whose step() does not wait.

Rule of this file: how this object differs from the class it extends. front_end.py decides when it is made.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, SupportsIndex, cast

import torch

from prophet_byteps.torch.keys import Engine
from prophet_byteps.torch.rounds import OptimizerRounds
from prophet_scheduler.frontends.notices import warn_once
from prophet_scheduler.frontends.torch.optimizer import begin, methods_of, updates_of


def wrap(
    optimizer: torch.optim.Optimizer,
    named: list[tuple[str, torch.Tensor]],
    engine: Engine,
    passes: int,
    fusion: bool,
    half: torch.dtype | None = None,
) -> torch.optim.Optimizer:
    """Return an object of a subclass of the optimizer's class, made anew of its groups. `half`: see OptimizerRounds."""
    user_class = type(optimizer)
    # As BytePS names it: broadcast_optimizer_state recognises a wrapped optimizer by its module.
    namespace = {**methods_of(_Methods), "__module__": engine.bps.DistributedOptimizer.__module__}
    # As torch does to the step() of BytePS's class: hooks run around that, and around the inner one as well.
    namespace["step"] = torch.optim.Optimizer.profile_hook_step(namespace["step"])
    namespace["step"].hooked = True
    wrapped_class = type(user_class.__name__, (user_class,), namespace)
    wrapped: Any = object.__new__(wrapped_class)
    vars(wrapped).update(_made_anew(optimizer))
    trainable = {id(p): p for group in optimizer.param_groups for p in group["params"] if p.requires_grad}
    for param in trainable.values():
        param.grad = torch.zeros_like(param)  # as BytePS leaves them
    chosen = [(name, trainable.pop(id(param))) for name, param in named if id(param) in trainable]
    rounds = OptimizerRounds(wrapped, user_class, chosen, list(trainable.values()), engine, passes, fusion, half)
    begin(wrapped, rounds)
    return wrapped  # type: ignore[no-any-return]


def _made_anew(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return the attributes of an optimizer made anew of this one's groups, as BytePS makes its own.

    State, defaults and hooks of the first stay behind. BytePS makes none of a class that needs more than groups; here
    the new one takes everything over.
    """
    user_class: Any = type(optimizer)
    anew: torch.optim.Optimizer = object.__new__(user_class)
    try:
        user_class.__init__(anew, optimizer.param_groups)
    except TypeError:
        # Without a scheduler's wrapper around step(), which is bound to the optimizer it was made for.
        return {key: value for key, value in vars(optimizer).items() if key != "step"}
    return vars(anew)


class _Methods:
    """Methods in which the returned optimizer differs from the class it extends."""

    @property
    def _prophet(self) -> Any:
        return updates_of(cast(torch.optim.Optimizer, self))

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Hand this round's gradients to the network. With a closure, or hooks around it, it also waits."""
        return self._prophet.step(closure)

    def synchronize(self) -> None:
        """Wait for all averaged gradients and put them in `.grad`. step() averages what is there then once more, as
        BytePS's does, but for one within skip_synchronize().
        """
        self._prophet.synchronize()

    def finish_updates(self) -> None:
        """Wait for the updates of the last step() and send nothing, so that one worker may call it alone."""
        self._prophet.flush()

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Make step() the optimizer's own within the context, on the gradients as they are."""
        self._prophet.should_synchronize = False
        try:
            yield
        finally:
            self._prophet.should_synchronize = True

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Let a gradient leave after `passes` backward passes from now on."""
        self._prophet.set_passes(passes)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super(type(self), self).add_param_group(param_group)  # type: ignore[misc]
        warn_once("gradients of parameters added after the optimizer was wrapped are not averaged (nor by BytePS)")

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        """Make a copy, also a pickled one, a plain optimizer of the class that was extended."""
        return object.__new__, (type(self).__mro__[1],), self.__getstate__()
