"""Optimizers with late updates, which keep their own classes: which optimizers have them, and access to their state.

What belongs here: that, and which optimizers can be updated one parameter at a time. updates.py decides when to make
updates; the engine's front end decides when an optimizer starts to have late updates.
"""

from __future__ import annotations

import functools
import weakref
from collections import defaultdict
from typing import Any

import torch

from prophet_scheduler.frontends.torch import references
from prophet_scheduler.frontends.torch.between import call_before
from prophet_scheduler.frontends.torch.updates import Updates

OLDEST_TORCH = (2, 4)
"""Oldest torch with everything that the front end calls (`torch.is_autocast_enabled(device_type)` is the newest)."""


_late: dict[int, tuple[weakref.ref[torch.optim.Optimizer], Updates | None]] = {}
"""Maker of late updates, or None for no late updates, by id of the living optimizer. It is not an attribute of the
optimizer, so that copies and pickles do not include it."""


def begin(optimizer: torch.optim.Optimizer, updates: Updates | None) -> None:
    """Let `updates` make this optimizer's updates from now on; None to use its own step()."""
    identity = id(optimizer)
    _late[identity] = weakref.ref(optimizer, lambda _reference: _late.pop(identity, None)), updates
    _install()


def has_begun(optimizer: torch.optim.Optimizer) -> bool:
    return id(optimizer) in _late


def updates_of(optimizer: torch.optim.Optimizer) -> Updates | None:
    """Return the maker of the optimizer's late updates, if any."""
    entry = _late.get(id(optimizer))
    return entry[1] if entry is not None else None


@functools.cache
def _install() -> None:
    """Patch torch once, so that all updates are made before the program reads or replaces an optimizer's state."""
    kind: Any = torch.optim.Optimizer
    kind.state = property(_state, _set_state, _delete_state)
    call_before(kind, "__setstate__", lambda optimizer, _state: _look_at_state(optimizer))


def _state(optimizer: torch.optim.Optimizer) -> Any:
    """Return the state by parameter, after all updates."""
    _look_at_state(optimizer)
    try:
        return vars(optimizer)["state"]
    except KeyError:
        raise AttributeError(f"{type(optimizer).__name__!r} object has no attribute 'state'") from None


def _set_state(optimizer: torch.optim.Optimizer, value: Any) -> None:
    _look_at_state(optimizer)
    vars(optimizer)["state"] = value


def _delete_state(optimizer: torch.optim.Optimizer) -> None:
    _state(optimizer)
    del vars(optimizer)["state"]


def _look_at_state(optimizer: torch.optim.Optimizer) -> None:
    """Make all updates, unless a signal handler asks in the middle of one, or the optimizer itself while stepping."""
    if torch.compiler.is_compiling():
        return
    own = vars(optimizer).get("state")
    for reference, updates in list(_late.values()):
        late = reference()
        # A wrapper of an optimizer may have its attributes.
        if updates is None or updates.stepping or late is None or vars(late).get("state") is not own:
            continue
        if not references.is_at_work():
            updates.flush()


def methods_of(namespace: type) -> dict[str, Any]:
    """Return what the body of a class defined, to make another class of it."""
    return {
        name: value
        for name, value in vars(namespace).items()
        if name not in ("__dict__", "__weakref__", "__annotations__", "__annotate__", "__doc__", "__module__")
    }


def too_old() -> str:
    """Return a phrase if the installed torch is older than OLDEST_TORCH; otherwise an empty string."""
    version = torch.__version__
    if tuple(int(part) for part in version.split(".")[:2]) >= OLDEST_TORCH:
        return ""
    return f"torch {version} is older than {'.'.join(map(str, OLDEST_TORCH))}"


BY_ELEMENT = frozenset(("ASGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "SGD"))
"""Classes of torch.optim that update each element of a parameter separately."""


def why_not_late(optimizer: torch.optim.Optimizer, shared: bool = False) -> str | None:
    """Return why its own step() cannot update one parameter at a time; None if it can. `shared`: ranks have parts of
    parameters, so that whatever communicates must start in one order on all ranks.
    """
    owner = step_owner(type(optimizer))
    kind = owner.__name__
    if shared and kind not in BY_ELEMENT:
        return f"{kind} may communicate where ranks have parts of a parameter"
    own_step: Any = vars(optimizer).get("step")
    foreign_step = own_step is not None and not hasattr(own_step, "_wrapped_by_lr_sched")
    if not _is_of_torch(owner) or foreign_step:
        return f"{type(optimizer).__name__} has a step() that is not of torch.optim"
    if not all(_is_of_torch(getattr(type(optimizer), name)) for name in vars(owner) if name[:2] != "__"):
        return f"{type(optimizer).__name__} has a part of step() that is not of torch.optim"
    if isinstance(optimizer, torch.optim.LBFGS | torch.optim.SparseAdam):
        return f"{type(optimizer).__name__} cannot update one parameter at a time"
    own: Any = vars(optimizer)
    plain = type(own.get("state")) in (dict, defaultdict) and getattr(own["state"], "default_factory", dict) is dict
    if not plain or any(own.get(name) is not getattr(optimizer, name) for name in ("state", "param_groups")):
        return f"{type(optimizer).__name__} keeps its state or its groups in a way of its own"
    if any(group.get("differentiable") for group in optimizer.param_groups):
        return "it is differentiable"
    params = [param for group in optimizer.param_groups for param in group["params"]]
    if len(set(map(id, params))) != len(params):
        return "a parameter is in it twice"
    kinds: set[Any] = {type(getattr(param, "_local_tensor", param)) for param in params}
    for each in kinds:
        # Its code may use random numbers, which are the program's, and memory that torch shows nobody.
        if each.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
            return f"a parameter is a {each.__name__}, which computes in a way of its own"
    return too_old() or None


def _is_of_torch(part: Any) -> bool:
    return f"{part.__module__}.".startswith("torch.optim.")


def step_owner(kind: type[torch.optim.Optimizer]) -> type:
    """Return the class that defines `step`.

    torch puts a wrapper (`hooked`) around step() into the class of the first optimizer created with that step(). If
    this is a subclass, the wrapped step() is an inherited one.
    """
    owners = [cls for cls in kind.__mro__ if "step" in vars(cls)]
    step = vars(owners[0])["step"]
    if getattr(step, "hooked", False) and len(owners) > 1:
        inherited = vars(owners[1])["step"]
        wrapped = getattr(step, "__wrapped__", None)  # None if step() is Prophet's own
        if wrapped is not None and wrapped in (inherited, getattr(inherited, "__wrapped__", None)):
            return step_owner(owners[1])
    return owners[0]
