"""The contenders of a config, each with its engine, framework and settings.

Rule of this file: turn the entries of a config into values. It starts nothing and names no policy. A contender is a
policy on the engine whose queues Prophet's hook takes over, or a variant of an engine (engines/). The variants of all
other engines are *peers*: a user's alternatives, run as their own documentation says, and Prophet on those engines.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import BeforeValidator, ConfigDict, Field

from prophet_scheduler import plugins
from prophet_scheduler.core import settings
from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.units import format_size, parse_size
from prophet_scheduler.engines.ddp import BUCKET_CAP_MB
from prophet_scheduler.engines.registry import engine_of, engines, peers, scheduled_engine
from prophet_scheduler.engines.spec import EngineSpec, Framework, Variant
from prophet_scheduler.lab.schema import MOST_COUNT, Strict
from prophet_scheduler.policies import (
    Option,
    all_definitions,
    did_you_mean,
    policy_from_environ,
    policy_names,
    unknown_variables,
)


def _parse_sizes(value: object) -> list[int]:
    return [parse_size(size) for size in (value if isinstance(value, list) else [value])]


class ContenderEntry(Strict):
    """Contender with settings, among them the policy's options. Lists of values make one contender per combination."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)

    name: str = Field(min_length=1, pattern=r"^[A-Za-z0-9._-]+$")
    base: str | None = None
    """Policy or variant to run; by default `name`."""
    engine: str | None = None
    """Engine on which `base` is a policy; by default the config's."""
    framework: Framework | None = None
    """Framework of the job scripts; by default the engine's first one."""
    partition_bytes: Annotated[list[int], Field(min_length=1), BeforeValidator(_parse_sizes)] | None = None
    warmup: int | None = Field(default=None, ge=0, le=MOST_COUNT)
    """Number of warm-up iterations instead of the job's; runs get longer or shorter by the difference."""
    env: dict[str, str] = Field(default_factory=dict)


@dataclass(frozen=True)
class Contender:
    """A policy or a variant, ready to run; `env` is added to the environment of every process."""

    name: str
    base: str
    env: Mapping[str, str] = field(default_factory=dict)
    framework: Framework = "torch"
    warmup: int | None = None
    """Number of first iterations to drop; None for the job's."""

    @property
    def engine(self) -> EngineSpec:
        return engine_of(self.base)

    @property
    def variant(self) -> Variant | None:
        """Variant of the engine; None for a policy on the hooked engine."""
        return self.engine.variant(self.base)

    @property
    def hooked(self) -> bool:
        """True if Prophet's hook is in the job."""
        return self.variant is None

    @property
    def policy(self) -> str | None:
        """Prophet's policy in the job; None if Prophet is not in the job."""
        return self.base if self.variant is None else self.variant.policy

    @property
    def recorded(self) -> bool:
        """True if Prophet is in the job and records its transfers and its status."""
        return self.policy is not None


def known_policies() -> list[str]:
    """Return the names that a config may use without `base`."""
    own = [variant.name for variant in scheduled_engine().variants]
    return [*own, *policy_names(), *peers()]


def require_known(name: str, known: Sequence[str], at: str) -> None:
    """Raise UserError unless `name` is one of the `known` policies."""
    if name not in known:
        others = f"{did_you_mean(name, known)}the known ones are {', '.join(dict.fromkeys(known))}"
        raise UserError(f"{at}: {plugins.absent(name) or f'unknown policy {name!r}; {others}'}")


def expand_policies(
    entries: Sequence[str | ContenderEntry], at: str, engine: EngineSpec | None = None
) -> tuple[Contender, ...]:
    """Return all contenders of a config's entries. Raises UserError that names their place `at` in the config.

    Policy names refer to policies on `engine`, the config's; by default the hooked engine.
    """
    engine = engine or scheduled_engine()
    policies: list[Contender] = []
    for index, entry in enumerate(entries):
        # A bare name skips ContenderEntry's validation: the error for an unknown policy is more helpful.
        whole = _named(engine.called_here(entry)) if isinstance(entry, str) else entry
        policies += _expanded(whole, f"{at}[{index}]", engine)
    names = [policy.name for policy in policies]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UserError(f"{at}: {twice!r} appears twice; rename one and give it a base")
    return tuple(policies)


def choose_policies(
    policies: Sequence[Contender], only: Sequence[str], engine: EngineSpec | None = None
) -> tuple[Contender, ...]:
    """Return the contenders named in `only`, from `policies` or the known names; see expand_policies.

    Raises UserError.
    """
    engine = engine or scheduled_engine()
    by_name = {policy.name: policy for policy in policies}
    chosen: list[Contender] = []
    for asked in dict.fromkeys(only):
        name = asked if asked in by_name else engine.called_here(asked)
        if name in by_name:
            chosen.append(by_name[name])
        else:
            require_known(name, [*by_name, *known_policies()], "--policy")
            chosen += _expanded(_named(name), "--policy", engine)
    return tuple(chosen)


def _named(name: str) -> ContenderEntry:
    return ContenderEntry.model_construct(name=name)


def _expanded(entry: ContenderEntry, at: str, for_engine: EngineSpec) -> list[Contender]:
    base = _base(entry, at, for_engine)
    framework = _framework(entry, base, at)
    varied = _options(entry, base, at)
    if entry.partition_bytes is not None:
        varied[_partition_variable(base, at)] = [(str(size), format_size(size)) for size in entry.partition_bytes]
    engine = engine_of(base)
    for name in entry.env:
        if not name.startswith(engine.settings) or name == settings.SCHEDULER:
            allowed = " and ".join(f"{prefix}..." for prefix in engine.settings)
            raise UserError(f"{at}.env: {name} is not a policy setting; {allowed} variables are")
    for name, near in unknown_variables(entry.env).items():
        advice = f"did you mean {near}?" if near else "leave it out"
        raise UserError(f"{at}.env: Prophet has no variable {name}; {advice}")
    env = dict(entry.env)
    if engine.variant(base) is None:
        env[settings.SCHEDULER] = base
    several = any(len(choices) > 1 for choices in varied.values())
    expanded = []
    for chosen in itertools.product(*varied.values()):
        name = "-".join([entry.name, *(label for _, label in chosen if several)])
        values = {variable: value for variable, (value, _) in zip(varied, chosen, strict=True)}
        contender = Contender(name, base, {**env, **values}, framework, entry.warmup)
        _check_values(contender, at)
        expanded.append(contender)
    return expanded


Choices = dict[str, list[tuple[str, str]]]
"""By variable, its values, each with its label in a contender's name."""


def _options(entry: ContenderEntry, base: str, at: str) -> Choices:
    """Return the values of the policy's options that the entry sets.

    Raises UserError if a key is not an option of this policy, or a value is wrong.
    """
    definitions, keys = all_definitions(), entry.model_extra or {}
    options = {option.name: option for option in definitions[base].all_options} if base in definitions else {}
    for key in (key for key in keys if key not in options):
        owners = [name for name, each in definitions.items() if key in {option.name for option in each.all_options}]
        if owners:
            raise UserError(f"{at}: {key} is a setting of {', '.join(owners)}, not of {base}; leave it out")
        known = ", ".join([*ContenderEntry.model_fields, *options])
        raise UserError(f"{at}.{key}: unknown key; the keys here are {known}")
    found = ((option, f"{at}.{name}") for name, option in options.items() if name in keys)
    return {option.variable: _choices(option, keys[option.name], where) for option, where in found}


_TYPES = {bool: ((bool,), "true or false"), int: ((int,), "a whole number"), float: ((int, float), "a number")}
"""Types that a config may use for an option, by the type of its default, and their name in an error."""


def _choices(option: Option, value: object, at: str) -> list[tuple[str, str]]:
    values = value if isinstance(value, list) else [value]
    if not values:
        raise UserError(f"{at}: is an empty list; give it a value")
    choices = []
    for item in values:
        types, wanted = _TYPES[type(option.default)]
        if option.unit == "bytes":
            try:
                size = parse_size(item)
            except ValueError as error:
                raise UserError(f"{at}: {error}") from None
            text, label = str(size), format_size(size)
        elif type(item) in types:
            text = label = str(int(item)) if isinstance(item, bool) else str(item)
        else:
            raise UserError(f"{at}: it must be {wanted}, not {item!r}")
        option.parse(text, at)
        choices.append((text, label))
    return choices


def _partition_variable(base: str, at: str) -> str:
    """Return the variable that sets the partition size of `base`. Raises UserError if `base` does not partition."""
    engine = engine_of(base)
    variant = engine.variant(base)
    if variant is not None and variant.policy is not None:
        return settings.PARTITION_BYTES
    if engine.partition is None:
        words = scheduled_engine().words
        raise UserError(f"{at}: partition_bytes is a setting of {words}, not of {base}; leave it out")
    return engine.partition.variable


def _check_values(contender: Contender, at: str) -> None:
    """Raise UserError if a variable has a value that would keep the contender's job from starting."""
    policy = contender.policy
    try:
        settings.from_environ({**contender.env, settings.SCHEDULER: policy or ""})
        if policy is not None and policy in policy_names():
            policy_from_environ(policy, contender.env)
        if (cap := contender.env.get(BUCKET_CAP_MB)) is not None:
            settings.number(cap, BUCKET_CAP_MB, 0)
    except UserError as error:
        raise UserError(f"{at}: {error}") from None


def _base(entry: ContenderEntry, at: str, for_engine: EngineSpec) -> str:
    """Return the name of the policy or variant that an entry refers to. Raises UserError."""
    if entry.engine is not None:
        if entry.engine not in engines():
            wrong = f"it must be {' or '.join(map(repr, engines()))}, not {entry.engine!r}"
            raise UserError(f"{at}.engine: {plugins.absent(entry.engine) or wrong}")
        for_engine = engines()[entry.engine]
    base = for_engine.called_here(entry.base or entry.name)
    require_known(base, known_policies(), at)
    if not for_engine.scheduled and engine_of(base).scheduled:
        names = [variant.policy for variant in for_engine.variants if variant.policy is not None]
        there = f"Prophet's policies there are {', '.join(names)}" if names else "Prophet has no policies there"
        raise UserError(f"{at}: {base!r} does not run on {for_engine.words}; {there}")
    return base


def _framework(entry: ContenderEntry, base: str, at: str) -> Framework:
    own = engine_of(base).frameworks
    if entry.framework is None:
        return own[0]
    if entry.framework not in own:
        others = [name for name, engine in peers().items() if entry.framework in engine.frameworks]
        only = " and ".join(own)
        raise UserError(f"{at}.framework: {base} is for {only} only; for {entry.framework} take {' or '.join(others)}")
    return entry.framework
