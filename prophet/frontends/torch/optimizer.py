"""An optimizer whose updates come late: what it does otherwise than the torch.optim class it is of.

What belongs here: those methods, and which optimizers can be updated one parameter at a time. When its updates are made
is updates.py's; when an optimizer is made one of these is the engine's front end's.
"""

from __future__ import annotations

import functools
from typing import Any, SupportsIndex

import torch

from prophet.frontends.torch import guards as torch_guards
from prophet.frontends.torch import references
from prophet.frontends.torch.updates import Updates

OLDEST_TORCH = (2, 4)
"""The first with all that the front end calls (`torch.is_autocast_enabled(device_type)` is the newest)."""


class LateMethods:
    """Methods of an optimizer with `_prophet`, its Updates."""

    _prophet: Updates

    @property
    def state(self) -> Any:
        """The optimizer's state by parameter, after all updates."""
        if not self._prophet.stepping:
            _settle(self._prophet)
            self._prophet.state_seen = True
        return vars(self)["state"]

    @state.setter
    def state(self, value: Any) -> None:
        self._prophet.state_seen = True
        vars(self)["state"] = value

    # A program's own class may take other arguments than torch's.

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        _settle(self._prophet)
        return super(type(self), self).state_dict(*args, **kwargs)  # type: ignore[misc,no-any-return]

    def load_state_dict(self, *args: Any, **kwargs: Any) -> None:
        _settle(self._prophet)
        super(type(self), self).load_state_dict(*args, **kwargs)  # type: ignore[misc]

    def add_param_group(self, *args: Any, **kwargs: Any) -> None:
        _settle(self._prophet)
        super(type(self), self).add_param_group(*args, **kwargs)  # type: ignore[misc]
        added = self.param_groups[-1]  # type: ignore[attr-defined]
        added["params"] = torch_guards.GroupParameters(added["params"])

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        """A copy, also a pickled one, is a plain optimizer of the class that was extended."""
        _settle(self._prophet)
        return object.__new__, (type(self).__mro__[1],), self.__getstate__()


def _settle(updates: Updates) -> None:
    """Makes all updates, but for a signal's handler in the middle of one."""
    if not references.is_at_work():
        updates.flush()


def methods_of(namespace: type) -> dict[str, Any]:
    """What a class body defined, for a class that is made of it."""
    return {
        name: value
        for name, value in vars(namespace).items()
        if name not in ("__dict__", "__weakref__", "__annotations__", "__annotate__", "__doc__", "__module__")
    }


@functools.cache
def late_class(user_class: type[torch.optim.Optimizer]) -> type[torch.optim.Optimizer]:
    """A subclass of the same name and module with LateMethods."""
    names = {
        "__module__": user_class.__module__,
        "__qualname__": user_class.__qualname__,
        "__doc__": user_class.__doc__,
    }
    return type(user_class.__name__, (user_class,), {**methods_of(LateMethods), **names})


def why_not_late(optimizer: torch.optim.Optimizer) -> str | None:
    """Why its updates cannot be made one parameter at a time, by its own step(); None where they can."""
    own_step: Any = vars(optimizer).get("step")
    foreign_step = own_step is not None and not hasattr(own_step, "_wrapped_by_lr_sched")
    if not f"{step_owner(type(optimizer)).__module__}.".startswith("torch.optim.") or foreign_step:
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


def step_owner(kind: type[torch.optim.Optimizer]) -> type:
    """The class that defines `step`.

    The first optimizer made of a family gets torch's wrapper (`hooked`) around step() in its own class, which is a
    subclass's where that came first and inherits its step().
    """
    owners = [cls for cls in kind.__mro__ if "step" in vars(cls)]
    step = vars(owners[0])["step"]
    if getattr(step, "hooked", False) and len(owners) > 1:
        inherited = vars(owners[1])["step"]
        wrapped = getattr(step, "__wrapped__", None)  # None of a step() that is Prophet's own
        if wrapped is not None and wrapped in (inherited, getattr(inherited, "__wrapped__", None)):
            return step_owner(owners[1])
    return owners[0]
