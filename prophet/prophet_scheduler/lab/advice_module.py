"""Profile of a user's own PyTorch model, `module:function`, for advice before any job has run.

Rule of this file: turn the function's model into a profile. With an example input, the model runs on this machine's
CPU; otherwise only its sizes are known.
"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.optional import require
from prophet_scheduler.core.profile import GradientProfile, Profile
from prophet_scheduler.lab.workload import scaled

PASSES = 3
"""Number of measured passes, after one that does not count."""
FORWARD_SHARE = 1 / 3
"""Forward's share of compute if not measured: backward has two matrix products for each one in forward."""


def is_function(source: str) -> bool:
    """True if `source` has the form `module:function` and is not a file."""
    return ":" in source and not Path(source).exists()


def of_function(source: str, computing_s: float | None) -> tuple[Profile, str]:
    """Return the profile of the function's model, and a sentence on the source of its times.

    The function returns a torch.nn.Module, or (module, example): a tensor, or a tuple or dict of arguments.
    `computing_s` is an iteration's compute time where the job runs; None to measure it here. Raises UserError.
    """
    require(("torch", f"prophet advise {source}"))
    import torch

    made = _called(source)
    model, example = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not isinstance(model, torch.nn.Module):
        given = type(model).__name__
        raise UserError(f"{source} returned {given}; let it return a torch.nn.Module, or (module, example)")
    if example is None and computing_s is None:
        raise UserError(
            f"{source} returned no example input; let it return (module, example), or give --computing, the time that "
            "an iteration takes without the network"
        )
    try:
        profile = _by_bytes(source, model) if example is None else _measured(source, model, example)
    except Exception as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{source}: its model failed with its example: {type(error).__name__}: {error}") from None
    if computing_s is None:
        where = "as measured on this machine's CPU; give --computing for the time where you train"
    else:
        by = computing_s / (profile.forward_s + profile.backward_s)
        profile = scaled(profile, backward_s=profile.backward_s * by, forward_s=profile.forward_s * by)
        shares = "by their bytes" if example is None else "as on this machine's CPU"
        where = f"as given by --computing, split among layers {shares}"
    return profile, f"computing takes {profile.backward_s:.3g} s backward, {profile.forward_s:.3g} s forward, {where}"


def _called(source: str) -> Any:
    module, _, name = source.partition(":")
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        return getattr(importlib.import_module(module), name)()
    except Exception as error:
        raise UserError(f"{source}: cannot be called ({type(error).__name__}: {error})") from None
    finally:
        sys.path.remove(here)  # not the current folder, which the function may have changed


def _by_bytes(source: str, model: Any) -> Profile:
    sizes = {name: param.nbytes for name, param in model.named_parameters() if param.requires_grad}
    rows, done = list[GradientProfile](), 0.0
    for name, size in reversed(sizes.items()):
        share = size / sum(sizes.values())
        done += share
        rows.append(GradientProfile(name, size, (1 - FORWARD_SHARE) * done, FORWARD_SHARE * share))
    return Profile(source, tuple(reversed(rows)))


def _measured(source: str, model: Any, example: Any) -> Profile:
    """Return the profile of a few iterations, without parameters that get no gradient."""
    params = {param: name for name, param in model.named_parameters() if param.requires_grad}
    began: list[tuple[Any, float]] = []
    came: dict[Any, float] = {}
    for module in model.modules():
        if own := [param for param in module.parameters(recurse=False) if param in params]:
            module.register_forward_pre_hook(lambda _, __, first=own[0]: began.append((first, time.perf_counter())))
    for param in params:
        param.register_post_accumulate_grad_hook(lambda param: came.update({param: time.perf_counter()}))
    passes = []
    for _ in range(1 + PASSES):
        began.clear()
        came.clear()
        if isinstance(example, Mapping):
            output = model(**example)
        else:
            output = model(*example) if isinstance(example, tuple) else model(example)
        loss = _sum(output)
        backward_s = time.perf_counter()
        loss.backward()
        model.zero_grad()
        forward_s = dict.fromkeys(came, 0.0)
        ends = [*(at for _, at in began[1:]), backward_s]
        for (first, at), end in zip(began, ends, strict=True):
            forward_s[first] = forward_s.get(first, 0.0) + end - at
        passes.append({param: (at - backward_s, forward_s[param]) for param, at in came.items()})
    rows = []
    for param in passes[-1]:
        generation_s, layer_s = (median(each[param][part] for each in passes[1:]) for part in (0, 1))
        rows.append(GradientProfile(params[param], param.nbytes, generation_s, layer_s))
    return Profile(source, tuple(sorted(rows, key=lambda row: -row.generation_s)))


def _sum(output: Any) -> Any:
    """Return a scalar to differentiate: the output's loss if it has one, else the sum of all its values."""
    if (loss := getattr(output, "loss", None)) is not None:
        return loss
    if isinstance(output, Mapping):
        output = list(output.values())
    if isinstance(output, list | tuple):
        return sum(_sum(each) for each in output)
    return output.float().sum() if hasattr(output, "float") else 0
