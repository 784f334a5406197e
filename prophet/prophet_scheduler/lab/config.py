"""Definition of an experiment: the YAML file (docs/experiments.md) as validated values.

Rule of this file: read and check; start and write nothing. Each mistake is one UserError of the form `FILE: KEY.PATH:
problem; advice`. Rates are bits per second, sizes bytes.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, BeforeValidator, Field, ValidationError, model_validator
from typing_extensions import Self

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.files import read_text
from prophet_scheduler.core.profile import Profile
from prophet_scheduler.engines.registry import engines, scheduled_engine
from prophet_scheduler.engines.spec import EngineSpec
from prophet_scheduler.lab.cluster_config import FSDP2, ClusterConfig, RateMix, SimulatorConfig, Traffic
from prophet_scheduler.lab.contenders import Contender, ContenderEntry, choose_policies, expand_policies
from prophet_scheduler.lab.faults import JobFault
from prophet_scheduler.lab.job_config import JOB_KINDS, JobConfig, ReplayJob
from prophet_scheduler.lab.schema import Count, Seconds, Strict, key_of
from prophet_scheduler.lab.shipped import shipped
from prophet_scheduler.lab.workload import on_the_wire, replayed_profile
from prophet_scheduler.plugins import absent
from prophet_scheduler.policies import did_you_mean

MOST_VALUES = 100_000
"""Maximum number of values in a config, counting repeats through YAML aliases."""
SIMULATOR = "simulator"
"""Engine of a config for `prophet simulate` only."""


def _known_engine(value: object) -> object:
    known = (*engines(), SIMULATOR)
    if value not in known:
        raise ValueError(absent(str(value)) or f"it must be {' or '.join(map(repr, known))}, not {value!r}")
    return value


class ExperimentConfig(Strict):
    """One point of an experiment, as written in the file."""

    name: str = Field(min_length=1, pattern=r"^[A-Za-z0-9._-]+$")
    engine: Annotated[str, BeforeValidator(_known_engine)] = Field(default_factory=lambda: scheduled_engine().name)
    repeats: Count = 1
    time_limit_s: Seconds = 60.0
    """Time without a finished iteration on any worker after which a run counts as hung."""
    job: Annotated[JobConfig, Field(discriminator="kind")]
    cluster: ClusterConfig
    policies: list[str | ContenderEntry] = Field(min_length=1)
    simulator: SimulatorConfig = SimulatorConfig()
    """Settings for `prophet simulate`; `prophet run` ignores them."""

    @model_validator(mode="after")
    def _parts_fit_together(self) -> Self:
        if self.simulator.exchange == FSDP2 and self.engine != SIMULATOR:
            raise ValueError(f"engine must be {SIMULATOR} with simulator.exchange: {FSDP2}, which `prophet run` lacks")
        return self


@dataclass(frozen=True)
class Cell:
    """One point of a sweep: policies compared on one testbed."""

    setting: Mapping[str, object]
    job: JobConfig
    cluster: ClusterConfig
    policies: tuple[Contender, ...]
    profile: Profile | None
    """Replayed profile, as scaled by the config; None for real training."""
    simulator: SimulatorConfig = field(default_factory=SimulatorConfig)
    engine: EngineSpec = field(default_factory=scheduled_engine)
    """The config's engine: its stock variant is the reference for all policies, its topology is that of the bound."""

    @property
    def wire(self) -> Profile | None:
        """Replayed profile with its sizes on the wire; None for real training."""
        return None if self.profile is None else on_the_wire(self.profile, self.job.compression)

    def job_of(self, policy: Contender) -> JobConfig:
        """Return the job with this policy's own warm-up, and as many iterations after it as for other policies."""
        if policy.warmup is None:
            return self.job
        iterations = self.job.iterations - self.job.warmup + policy.warmup
        return self.job.model_copy(update={"iterations": iterations, "warmup": policy.warmup})

    def of(self, policy: Contender) -> Cell:
        """Return this cell with the policy's `job_of`."""
        return replace(self, job=self.job_of(policy))


@dataclass(frozen=True)
class Experiment:
    """Validated config; `source` is the content of `file`, for results.json."""

    file: Path
    name: str
    engine: str
    repeats: int
    time_limit_s: float
    cells: tuple[Cell, ...]
    source: Mapping[str, object]


def load_experiment(path: Path, policies: Sequence[str] = (), repeats: int | None = None) -> Experiment:
    """Read a config. If given, `policies` and `repeats` replace the file's own.

    `policies` may name the file's policies and any known ones. Raises UserError.
    """
    return experiment_of(_read_yaml(path), path, policies, repeats)


def experiment_of(
    content: Mapping[str, Any], path: Path, policies: Sequence[str] = (), repeats: int | None = None
) -> Experiment:
    """Like `load_experiment`, but from the content of a config, such as that in a results.json.

    `path` takes the place of the config file: in messages, as the default name, and to find profiles beside it.
    """
    raw = _checked_values(content, path)
    raw.setdefault("name", re.sub(r"[^A-Za-z0-9._-]+", "-", path.stem))
    points = raw.pop("sweep", None)
    if points is not None and (not isinstance(points, list) or not points):
        raise UserError(f"{path}: sweep: must be a list of points; write e.g. [{{cluster: {{bandwidth: 100mbit}}}}]")
    cells: list[Cell] = []
    config: ExperimentConfig | None = None
    for index, point in enumerate([{}] if points is None else points):
        where = "" if points is None else f"sweep[{index}]."
        if not isinstance(point, dict) or not set(point) <= set(_VARIABLE):
            raise UserError(f"{path}: {where.rstrip('.')}: must be a mapping that varies {', '.join(_VARIABLE)}")
        try:
            config = ExperimentConfig.model_validate(_merge(raw, point))
        except ValidationError as error:
            raise UserError(f"{path}: {_first_line(error, where, point)}") from None
        cells.append(_cell(config, point, path.parent, f"{path}: {where}", policies))
    assert config is not None
    source = {**raw, **({} if points is None else {"sweep": points})}
    repeats = repeats or config.repeats
    return Experiment(path, config.name, config.engine, repeats, config.time_limit_s, tuple(cells), source)


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        text = read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        meant = did_you_mean(str(path), dict(shipped())) if isinstance(error, FileNotFoundError) else ""
        advice = f"{meant}give the path of a YAML config, or a name that `prophet run --list` shows"
        raise UserError(f"{path}: cannot be read ({reason}); {advice}") from None
    try:
        raw = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" in line {mark.line + 1}" if mark is not None else ""
        raise UserError(f"{path}: is not YAML{line} ({getattr(error, 'problem', None) or 'bad character'})") from None
    except (ValueError, RecursionError) as error:  # an impossible date, or endlessly nested lists
        raise UserError(f"{path}: is not YAML ({str(error).splitlines()[0]})") from None
    if not isinstance(raw, dict):
        raise UserError(f"{path}: must be a mapping with the keys {', '.join(ExperimentConfig.model_fields)}")
    return raw


def _checked_values(content: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return a copy. Raises UserError for more than MOST_VALUES values (by aliases) or numbers beyond 64 bits."""
    try:
        for count, (place, value) in enumerate(_values(content)):
            if count == MOST_VALUES:
                raise UserError(f"{path}: it has more than {MOST_VALUES:,} values, with its aliases")
            if isinstance(value, Mapping) and not all(isinstance(key, str) for key in value):
                raise UserError(f"{path}: {key_of(place) or 'the whole'}: it has a key that is not text")
            if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
                raise UserError(f"{path}: {key_of(place)}: the number is too large")
        return copy.deepcopy(dict(content))
    except RecursionError:
        raise UserError(f"{path}: its lists are nested without end") from None


def _values(value: object, *place: int | str) -> Iterator[tuple[tuple[int | str, ...], object]]:
    """Yield `value` and all values inside it, each with its place."""
    yield place, value
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _values(inner, *place, key)
    elif isinstance(value, list | tuple | set):
        for number, inner in enumerate(value):
            yield from _values(inner, *place, number)


_OF_LINKS = ("bandwidth", "delay", "traffic", "faults", "rate_mix")
"""Keys of `cluster` whose value counts as one value, even a mapping or list."""
_VARIABLE = ("job", "cluster", "policies", "simulator")


def _merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` updated with the leaves of `over`; `_OF_LINKS` and a job with a `kind` are replaced whole."""
    merged = copy.deepcopy(dict(base))
    for key, value in over.items():
        nested = isinstance(value, dict) and isinstance(merged.get(key), dict)
        nested = nested and key not in _OF_LINKS and "kind" not in value
        merged[key] = _merge(merged[key], value) if nested else value
    return merged


def _first_line(error: ValidationError, where: str, point: Mapping[str, Any]) -> str:
    """Return pydantic's first error in terms of the config file. `where` prefixes only keys of the `point`."""
    # A policy is a name or a mapping. Pydantic reports an error for each reading; the mapping's is more helpful.
    mistakes = sorted(error.errors(), key=lambda e: (e["type"] != "extra_forbidden", e["loc"][-1:] == ("str",)))
    first = mistakes[0]
    where = "" if first["loc"] and first["loc"][0] not in point else where
    # Drop what the unions add to the path: that of jobs its tag, that of policies the names of types.
    key = key_of(s for s in first["loc"] if s not in (*JOB_KINDS, "str", "ContenderEntry"))
    kind, value = first["type"], first["input"]
    at = f"{where}{key}".rstrip(".")
    if kind == "extra_forbidden":
        known = ", ".join(_known_keys(first["loc"]))
        return f"{where}{key}: unknown key; the keys here are {known}"
    if kind in ("missing", "union_tag_not_found"):
        key = f"{key}.kind" if kind == "union_tag_not_found" else key
        return f"{where}{key}: is missing; give it a value"
    if kind == "union_tag_invalid":
        return f"{where}{key}.kind: {value.get('kind')!r} is not a kind of job; use {', '.join(JOB_KINDS)}"
    if kind == "value_error":
        return ": ".join(filter(None, (at, str(first["ctx"]["error"]))))
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        return f"{where}{key}: it must be a mapping of keys to values, not {value!r}"
    if kind == "too_short":
        return f"{at}: it must have at least 1 item"
    wanted = first["msg"].replace("Input should", "it must").replace("String should", "it must")
    return f"{where}{key}: {wanted[0].lower()}{wanted[1:]}, not {value!r}"


def _known_keys(loc: tuple[int | str, ...]) -> list[str]:
    models: dict[int | str, type[BaseModel]] = {"cluster": ClusterConfig, "simulator": SimulatorConfig}
    models.update({**JOB_KINDS, "traffic": Traffic, "faults": JobFault, "rate_mix": RateMix})
    inner = next((models[step] for step in reversed(loc[:-1]) if step in models), None)
    return [*ExperimentConfig.model_fields, "sweep"] if inner is None else list(inner.model_fields)


def _cell(config: ExperimentConfig, point: Mapping[str, Any], folder: Path, at: str, only: Sequence[str]) -> Cell:
    job = config.job
    engine = engines().get(config.engine, scheduled_engine())
    policies = expand_policies(config.policies, f"{at}policies", engine)
    if only:
        policies = choose_policies(policies, only, engine)
    for policy in policies:
        wrong = ""
        if policy.framework not in job.frameworks:
            wrong = f"kind: {job.kind} runs only in {' and '.join(job.frameworks)}"
        elif job.compression != "none" and policy.framework != "torch":
            wrong = f"compression: {job.compression} is for policies in torch"
        elif isinstance(job, ReplayJob) and job.clip_norm and policy.framework != "torch":
            wrong = "clip_norm: replays clip only in torch"
        if wrong:
            trains = f"{policy.name} trains in {policy.framework}; leave that policy out"
            raise UserError(f"{at}job.{wrong}, and {trains}")
    _check_faults(config.cluster, policies, f"{at}cluster.faults")
    profile = replayed_profile(job, folder, f"{at}job") if isinstance(job, ReplayJob) else None
    return Cell(_setting(config, point), job, config.cluster, policies, profile, config.simulator, engine)


def _check_faults(cluster: ClusterConfig, policies: Sequence[Contender], at: str) -> None:
    """Raise UserError if a fault cannot affect a policy's engine: the result would seem to be under that fault."""
    for index, fault in enumerate(cluster.faults):
        for policy in policies:
            engine = policy.engine
            if fault.node is not None and not engine.has_role(fault.node):
                raise UserError(f"{at}[{index}].node: {fault.node} has no part in {policy.name}; leave the policy out")
            if fault.percent is not None and engine.message_loss is None:
                raise UserError(f"{at}[{index}]: {engine.words} cannot drop messages; leave {policy.name} out")


def _setting(config: ExperimentConfig, point: Mapping[str, Any]) -> dict[str, object]:
    """Return the varied values by the last part of their keys (a whole job as its kind and model), always the
    bandwidth, and delay, traffic and faults if varied or present.
    """
    cluster = config.cluster
    setting: dict[str, object] = {"bandwidth": cluster.bandwidth.as_setting()}
    varied = point.get("cluster", {})
    if "delay" in varied or cluster.delay:
        setting["delay"] = cluster.delay
    if "traffic" in varied or cluster.traffic:
        setting["traffic"] = [traffic.model_dump() for traffic in cluster.traffic]
    if "faults" in varied or cluster.faults:
        setting["faults"] = [fault.model_dump(mode="json", exclude_unset=True) for fault in cluster.faults]
    if cluster.rate_mix is not None:
        setting["rate_mix"] = cluster.rate_mix.model_dump()
    job = config.job
    if whole_job := "kind" in point.get("job", {}):
        setting["job"] = f"{job.kind} {job.profile if isinstance(job, ReplayJob) else job.model}"
        if job.compression != "none":
            setting["compression"] = job.compression
    for part in ("cluster", "simulator") if whole_job else ("job", "cluster", "simulator"):
        for key in point.get(part, {}):
            if key not in _OF_LINKS:
                setting[key] = getattr(getattr(config, part), key)
    if "policies" in point:
        setting["policies"] = point["policies"]
    return setting
