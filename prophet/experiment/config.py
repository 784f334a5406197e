"""What an experiment is: the YAML file as validated values, and every way it can be wrong.

Rule of this file: reading and checking; nothing is started or written. Each mistake is one UserError
of the form `FILE: KEY.PATH: what is wrong; what to do`. Rates are bits per second, sizes bytes.
docs/experiments.md describes the keys for people.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from prophet.errors import UserError
from prophet.experiment.policies import Framework, Policy, PolicyEntry, choose_policies, expand_policies
from prophet.experiment.units import parse_rate, parse_size
from prophet.model import Profile
from prophet.simulator.config import SimulatorConfig

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Size = Annotated[int, BeforeValidator(parse_size)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


@dataclass(frozen=True)
class Bandwidth:
    """The link of each shaped node, both ways, in bits per second; None means not shaped.

    `default` is every worker's rate, `nodes` overrides it by name, and `changes` are later rates of
    the workers as (seconds after all workers finished their first iteration, rate).
    """

    default: float | None
    nodes: Mapping[str, float] = field(default_factory=dict)
    changes: tuple[tuple[float, float], ...] = ()

    def rate(self, node: str) -> float | None:
        """The rate of `node` at the start."""
        fallback = self.default if node.startswith("worker") else None
        return self.nodes.get(node, fallback)

    def as_setting(self) -> object:
        """As results.json gives it."""
        if self.changes:
            return [{"at_s": at, "rate": rate} for at, rate in ((0.0, self.default), *self.changes)]
        if self.nodes:
            return {**({} if self.default is None else {"default": self.default}), **self.nodes}
        return self.default


def _parse_bandwidth(value: object) -> Bandwidth:
    if isinstance(value, dict):
        if not value:
            raise ValueError("names no node; write e.g. {default: 250mbit, worker0: 100mbit}")
        rates = {str(node): parse_rate(rate) for node, rate in value.items()}
        return Bandwidth(rates.pop("default", None), rates)
    if isinstance(value, list):
        points = [_rate_point(point) for point in value]
        if not points or points[0][0] != 0 or any(b <= a for (a, _), (b, _) in itertools.pairwise(points)):
            raise ValueError("a series of rates starts with at_s: 0 and goes up from there")
        return Bandwidth(points[0][1], changes=tuple(points[1:]))
    return Bandwidth(parse_rate(value))


def _rate_point(point: object) -> tuple[float, float]:
    if not isinstance(point, dict) or set(point) != {"at_s", "rate"}:
        raise ValueError(f"{point!r} is no point of a series; write e.g. {{at_s: 10, rate: 100mbit}}")
    at_s = point["at_s"]
    if isinstance(at_s, bool) or not isinstance(at_s, int | float) or not 0 <= at_s < float("inf"):
        raise ValueError(f"at_s is {at_s!r}; it must be 0 or more seconds")
    return float(at_s), parse_rate(point["rate"])


class ClusterConfig(_Strict):
    """The machines, each a network namespace. Shaped are the links of the workers, unless named otherwise."""

    workers: int = Field(default=2, ge=1, le=100_000)
    servers: int = Field(default=1, ge=1, le=100_000)
    bandwidth: Annotated[Bandwidth, BeforeValidator(_parse_bandwidth)]

    @property
    def nodes(self) -> list[str]:
        servers = [f"server{index}" for index in range(self.servers)]
        return ["scheduler", *servers, *(f"worker{index}" for index in range(self.workers))]

    @model_validator(mode="after")
    def _nodes_exist(self) -> Self:
        unknown = sorted(set(self.bandwidth.nodes) - set(self.nodes))
        if unknown:
            raise ValueError(f"bandwidth names {unknown[0]!r}; the nodes are default, {', '.join(self.nodes)}")
        return self


class _Job(_Strict):
    framework: Framework = "torch"
    """Of the policies that run in either and name none themselves."""
    iterations: int = Field(default=30, ge=3)
    """How often each worker trains. The time of the last has no end to measure and is not counted."""
    warmup: int = Field(default=10, ge=0)
    """Iterations dropped from the statistics at the start, while a policy learns."""
    batch_size: int = Field(default=32, ge=1)
    """Samples of one worker and iteration."""
    seed: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _something_to_measure(self) -> Self:
        if self.warmup > self.iterations - 2:
            raise ValueError(
                f"warmup is {self.warmup}; with {self.iterations} iterations at most {self.iterations - 2}"
            )
        return self


class DigitsJob(_Job):
    """Real training on scikit-learn's handwritten digits."""

    kind: Literal["digits"]
    model: Literal["mlp", "cnn"] = "mlp"
    learning_rate: float = Field(default=0.1, gt=0)
    target_accuracy: float = Field(default=0.95, gt=0, le=1)
    """Below this on any worker, the policy has failed."""


class SyntheticJob(_Job):
    """A known model trained for real on random images: real computing, with nothing to learn."""

    kind: Literal["synthetic"]
    model: Literal["resnet18", "resnet50"] = "resnet18"
    image_size: int = Field(default=32, ge=32, le=512)
    """Pixels on each side; computing grows with its square, and what is sent does not."""
    classes: int = Field(default=1000, ge=2)
    learning_rate: float = Field(default=0.01, gt=0)


class ReplayJob(_Job):
    """A recorded job: real gradients on a real network, compute replaced by sleeping."""

    kind: Literal["replay"]
    profile: str = "resnet50"
    """A built-in profile by name, or a file of `prophet profile`, relative to the config."""
    total_bytes: Size | None = None
    """Scales all gradients to this sum."""
    steps: int | None = Field(default=None, ge=1)
    """Makes the gradients appear in this many steps of about equal size."""
    device: str | None = None
    """A built-in profile computes as long as is published for `batch_size` samples on this GPU (docs/profiles.md)."""
    backward_s: Seconds | None = None
    forward_s: Seconds | None = None


Job = DigitsJob | SyntheticJob | ReplayJob
_KINDS: dict[str, type[BaseModel]] = {"digits": DigitsJob, "synthetic": SyntheticJob, "replay": ReplayJob}


class ExperimentConfig(_Strict):
    """One point of an experiment, as written in the file."""

    name: str = Field(min_length=1, pattern=r"^[A-Za-z0-9._-]+$")
    engine: Literal["byteps", "simulator"] = "byteps"
    repeats: int = Field(default=1, ge=1)
    time_limit_s: Seconds = 60.0
    """A run in which no worker finishes an iteration for so long has hung."""
    job: Annotated[Job, Field(discriminator="kind")]
    cluster: ClusterConfig
    policies: list[str | PolicyEntry] = Field(min_length=1)
    simulator: SimulatorConfig = SimulatorConfig()
    """What `prophet simulate` is told besides; `prophet run` leaves it alone."""

    @model_validator(mode="after")
    def _simulated_nodes_exist(self) -> Self:
        named = [*self.simulator.stragglers, *(traffic.node for traffic in self.simulator.traffic)]
        unknown = sorted(set(named) - set(self.cluster.nodes))
        if unknown:
            raise ValueError(f"simulator names {unknown[0]!r}, which is no node of the cluster")
        return self


@dataclass(frozen=True)
class Cell:
    """One point of a sweep: what is compared with each other, on one testbed."""

    setting: Mapping[str, object]
    job: Job
    cluster: ClusterConfig
    policies: tuple[Policy, ...]
    profile: Profile | None
    """The job that is replayed, scaled as the config says; None for real training."""
    simulator: SimulatorConfig = field(default_factory=SimulatorConfig)


@dataclass(frozen=True)
class Experiment:
    """A whole config, checked: `source` is the file's content, for results.json."""

    name: str
    engine: str
    repeats: int
    time_limit_s: float
    cells: tuple[Cell, ...]
    source: Mapping[str, Any]


def load_experiment(path: Path, policies: Sequence[str] = (), repeats: int | None = None) -> Experiment:
    """Reads a config. `policies` and `repeats`, where given, take the place of the file's own.

    A name in `policies` is one of the file's policies or any known one. Raises UserError.
    """
    raw = _read_yaml(path)
    points = raw.pop("sweep", None)
    if points is not None and (not isinstance(points, list) or not points):
        raise UserError(f"{path}: sweep: must be a list of points; write e.g. [{{cluster: {{bandwidth: 100mbit}}}}]")
    cells: list[Cell] = []
    config: ExperimentConfig | None = None
    for index, point in enumerate([{}] if points is None else points):
        where = "" if points is None else f"sweep[{index}]."
        config = _validate(_merge(raw, _checked_point(point, path, where)), path, where)
        cells.append(_cell(config, point, path, where, policies))
    assert config is not None
    source = {**raw, **({} if points is None else {"sweep": points})}
    if repeats is not None and repeats < 1:
        raise UserError(f"--repeats is {repeats}; it must be 1 or more")
    return Experiment(config.name, config.engine, repeats or config.repeats, config.time_limit_s, tuple(cells), source)


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise UserError(f"{path}: cannot be read ({reason}); give the path of a YAML config") from None
    try:
        raw = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" in line {mark.line + 1}" if mark is not None else ""
        raise UserError(f"{path}: is not YAML{line} ({getattr(error, 'problem', None) or 'bad character'})") from None
    if not isinstance(raw, dict):
        raise UserError(f"{path}: must be a mapping with the keys {', '.join(ExperimentConfig.model_fields)}")
    raw.setdefault("name", path.stem)
    return raw


_VARIABLE = ("job", "cluster", "policies", "simulator")


def _checked_point(point: object, path: Path, where: str) -> dict[str, Any]:
    if not isinstance(point, dict) or not set(point) <= set(_VARIABLE):
        raise UserError(f"{path}: {where.rstrip('.')}: must be a mapping that varies {', '.join(_VARIABLE)}")
    return point


def _merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with the leaves of `over` in place of its own; a `bandwidth` and a job of a `kind` are replaced whole."""
    merged = copy.deepcopy(dict(base))
    for key, value in over.items():
        nested = isinstance(value, dict) and isinstance(merged.get(key), dict)
        nested = nested and key != "bandwidth" and "kind" not in value
        merged[key] = _merge(merged[key], value) if nested else value
    return merged


def _validate(raw: Mapping[str, Any], path: Path, where: str) -> ExperimentConfig:
    try:
        return ExperimentConfig.model_validate(raw)
    except ValidationError as error:
        raise UserError(f"{path}: {_first_line(error, where)}") from None


def _first_line(error: ValidationError, where: str) -> str:
    """The first thing that pydantic found, in the words of a config file."""
    # A policy is a name or a mapping, and pydantic reports both readings: that of the mapping says more.
    found = sorted(error.errors(), key=lambda e: (e["type"] != "extra_forbidden", e["loc"][-1:] == ("str",)))
    first = found[0]
    # The union of jobs adds its tag to the path, the union of policies the name of a type.
    steps = [s for s in first["loc"] if s not in (*_KINDS, "str", "PolicyEntry")]
    key = "".join(f"[{s}]" if isinstance(s, int) else f".{s}" for s in steps).lstrip(".")
    kind, value = first["type"], first["input"]
    if kind == "extra_forbidden":
        known = ", ".join(_known_keys(first["loc"]))
        return f"{where}{key}: unknown key; the keys here are {known}"
    if kind in ("missing", "union_tag_not_found"):
        key = f"{key}.kind" if kind == "union_tag_not_found" else key
        return f"{where}{key}: is missing; give it a value"
    if kind == "union_tag_invalid":
        return f"{where}{key}.kind: {value.get('kind')!r} is no kind of job; write {', '.join(_KINDS)}"
    if kind == "value_error":
        return f"{where}{key}: {first['ctx']['error']}"
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        return f"{where}{key}: it must be a mapping of keys to values, not {value!r}"
    wanted = first["msg"].replace("Input should", "it must").replace("String should", "it must")
    return f"{where}{key}: {wanted[0].lower()}{wanted[1:]}, not {value!r}"


def _known_keys(loc: tuple[int | str, ...]) -> list[str]:
    models: dict[str, type[BaseModel]] = {
        **_KINDS,
        "cluster": ClusterConfig,
        "simulator": SimulatorConfig,
        "PolicyEntry": PolicyEntry,
    }
    model = next((models[s] for s in reversed(loc[:-1]) if isinstance(s, str) and s in models), ExperimentConfig)
    keys = list(model.model_fields)
    return [*keys, "sweep"] if model is ExperimentConfig else keys


def _cell(config: ExperimentConfig, point: Mapping[str, Any], path: Path, where: str, only: Sequence[str]) -> Cell:
    from prophet.experiment.workload import replayed_profile

    job = config.job
    policies = expand_policies(config.policies, job.framework, path, where)
    if only:
        policies = choose_policies(policies, only, job.framework)
    profile = replayed_profile(job, path.parent, f"{path}: {where}job") if isinstance(job, ReplayJob) else None
    return Cell(_setting(config, point), job, config.cluster, policies, profile, config.simulator)


def _setting(config: ExperimentConfig, point: Mapping[str, Any]) -> dict[str, object]:
    """What was varied, by the last part of its key; the bandwidth always, and a whole job by its kind and model."""
    setting: dict[str, object] = {"bandwidth": config.cluster.bandwidth.as_setting()}
    whole_job = "kind" in point.get("job", {})
    if whole_job:
        job = config.job
        setting["job"] = f"{job.kind} {job.profile if isinstance(job, ReplayJob) else job.model}"
    for part in ("cluster", "simulator") if whole_job else ("job", "cluster", "simulator"):
        for key in point.get(part, {}):
            if key != "bandwidth":
                setting[key] = getattr(getattr(config, part), key)
    if "policies" in point:
        setting["policies"] = point["policies"]
    return setting
