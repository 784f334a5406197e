"""Installed engines, found by their entry points (plugins.py).

Rule of this file: look-ups over the descriptions of all engines.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from types import MappingProxyType

from prophet_scheduler import plugins
from prophet_scheduler.engines.spec import EngineSpec


@functools.cache
def engines() -> Mapping[str, EngineSpec]:
    """Return all engines by name, in alphabetical order."""
    names = plugins.entries(plugins.ENGINES)
    return MappingProxyType({name: plugins.load(plugins.ENGINES, name) for name in names})


def scheduled_engine() -> EngineSpec:
    """Return the engine that runs the policies: the one with a hook."""
    (spec,) = (spec for spec in engines().values() if spec.scheduled)
    return spec


def engine_of(base: str) -> EngineSpec:
    """Return the engine that has `base` as a variant; otherwise `base` is a policy, for the engine with a hook."""
    return next((spec for spec in engines().values() if spec.variant(base) is not None), scheduled_engine())


def peers() -> Mapping[str, EngineSpec]:
    """Return the engine of each variant without a hook, by variant: alternatives for users, some with Prophet."""
    unscheduled = (spec for spec in engines().values() if not spec.scheduled)
    return {variant.name: spec for spec in unscheduled for variant in spec.variants}
