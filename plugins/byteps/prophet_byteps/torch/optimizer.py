"""The optimizer that a program gets from `DistributedOptimizer`: one of its own class, whose step() does not wait.

What belongs here: what this object does otherwise than the class it extends. front_end.py decides when it is made, and
updates.py has its rounds.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, SupportsIndex

import torch

from prophet_byteps.torch import guards as torch_guards
from prophet_byteps.torch import references
from prophet_byteps.torch.keys import Engine, warn_once
from prophet_byteps.torch.updates import Updates


def wrap(
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
