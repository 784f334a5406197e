"""The engines that there are: every package in this folder that has an `ENGINE`.

What belongs here: finding descriptions, and what follows from all of them together.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Mapping
from types import MappingProxyType

import prophet_scheduler.engines
from prophet_scheduler.engines.spec import EngineSpec


@functools.cache
def engines() -> Mapping[str, EngineSpec]:
    """All engines by name, in alphabetical order."""
    folders = sorted(module.name for module in pkgutil.iter_modules(prophet_scheduler.engines.__path__) if module.ispkg)
    specs: list[EngineSpec] = [
        importlib.import_module(f"{prophet_scheduler.engines.__name__}.{name}").ENGINE for name in folders
    ]
    return MappingProxyType({spec.name: spec for spec in specs})


def scheduled_engine() -> EngineSpec:
    """The engine that runs the policies: the one with a hook."""
    (spec,) = (spec for spec in engines().values() if spec.scheduled)
    return spec


def engine_of(base: str) -> EngineSpec:
    """What moves the gradients of `base`, a variant of an engine or a policy."""
    return next((spec for spec in engines().values() if spec.variant(base) is not None), scheduled_engine())


def peers() -> Mapping[str, EngineSpec]:
    """The variants of the engines without the hook, by name: what a user could take instead, and Prophet there."""
    unscheduled = (spec for spec in engines().values() if not spec.scheduled)
    return {variant.name: spec for spec in unscheduled for variant in spec.variants}
