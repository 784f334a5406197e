"""What the runner says to a job, and what a worker leaves: spec.json and the result beside it.

Rule of this file: immutable values and their JSON, for any framework; nothing is imported that a training script would
not have. The runner checks what it reads (lab/records.py). Times are seconds on the steady clock.
"""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass, field
from pathlib import Path

from prophet_scheduler.core.files import parse_json, read_text, write_whole


@dataclass(frozen=True)
class Spec:
    """What a script needs of a config's `job`. What its kind of job does not have is left empty."""

    iterations: int
    seed: int
    batch_size: int
    model: str = ""
    learning_rate: float = 0.0
    image_size: int = 0
    """Pixels on each side."""
    classes: int = 0
    rising: int = 0
    """Iterations in which the learning rate rises."""
    clip_norm: float = 0.0
    compile: str = "no"
    """By torch.compile: `blocks`, or `whole`."""
    compile_backend: str = ""
    profile: str = ""
    """The file of the profile to replay."""
    stragglers: dict[str, float] = field(default_factory=dict)
    """How many times as long a worker computes, by its name."""
    compression: str = "none"
    """What gradients travel as, in the words of a config."""
    features: int = 0
    """Inputs of each class of a logistic regression."""
    compute_s: float = 0.0
    """What a computation lasts."""
    slow_chance: float = 0.0
    slow_factor: float = 1.0
    """With this chance, from 0 to 1, it lasts so many times as long."""
    delay_constant: float = 0.0
    """c of learning rates that follow delays (frontends/torch/step_size.py); 0 for constant ones."""


def read_spec(path: Path) -> Spec:
    """The part of the runner's spec.json that scripts use; it has the other keys of the config too.

    Raises OSError, and ValueError where that is no JSON, or TypeError where it is no mapping or lacks a key.
    """
    raw = parse_json(read_text(path))
    return Spec(**{field.name: raw[field.name] for field in dataclasses.fields(Spec) if field.name in raw})


@dataclass(frozen=True)
class Mark:
    """When one iteration's forward pass and backward pass began, and when the host had handed backward over."""

    start: float
    backward: float
    backward_end: float


@dataclass
class Convergence:
    """The loss that a worker saw of the model, and what became of its updates, where it is not in step with others.

    At `times_s[i]`, on the clock of the marks, its weights had the loss `losses[i]` and, without step, the version
    `versions[i]`: the updates of all workers in them. Of its own updates `sent` went to the server, of those
    `uncoordinated` without a coordinator's grant, `dropped` went nowhere, and `applied` the server has at the end.
    `greatest_delay` is in versions (Eq. 9 of MLfabric).
    """

    times_s: list[float] = dataclasses.field(default_factory=list)
    losses: list[float] = dataclasses.field(default_factory=list)
    versions: list[int] = dataclasses.field(default_factory=list)
    sent: int | None = None
    dropped: int | None = None
    uncoordinated: int | None = None
    applied: int | None = None
    greatest_delay: int | None = None

    def keep(self, time_s: float, loss: float, version: int | None) -> None:
        """Takes in a look at the loss; that of a model that has diverged is no number, and cannot be written."""
        if not math.isfinite(loss):
            return
        self.times_s.append(time_s)
        self.losses.append(loss)
        if version is not None:
            self.versions.append(version)


@dataclass(frozen=True)
class WorkerRecord:
    """What one worker leaves. `iteration_s` has one entry less than `marks`: the last iteration has no end.

    `start_s` is how long the process needed until its first iteration was over, `resident_bytes` its memory after each
    iteration, `processor_s` the processor time of all its threads until then. `wall_minus_steady_s` is how far the wall
    clock was ahead, to read a trace of BytePS. A simulated worker has times alone. Only a job that can be scored has an
    `accuracy`, and only one that keeps its loss against time a `convergence`.
    """

    iteration_s: list[float]
    marks: list[Mark]
    start_s: float | None = None
    resident_bytes: list[int] = dataclasses.field(default_factory=list)
    wall_minus_steady_s: float = 0.0
    parameters: list[str] = dataclasses.field(default_factory=list)
    weights_sha256: str | None = None
    rank: int = 0
    accuracy: float | None = None
    parameter_bytes: list[int] = dataclasses.field(default_factory=list)
    processor_s: list[float] = dataclasses.field(default_factory=list)
    convergence: Convergence | None = None


def write_record(record: WorkerRecord, path: Path) -> None:
    """Writes `record` as JSON, whole or not at all; what is None is left out."""
    content = {name: value for name, value in dataclasses.asdict(record).items() if value is not None}
    write_whole(json.dumps(content), path)
