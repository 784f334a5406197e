"""The jobs of a config: what is trained, or replayed.

Rule of this file: the schema of `job`, one class a kind, and its checks. Sizes are bytes, times seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from prophet_scheduler.engines.spec import Framework
from prophet_scheduler.lab.schema import MOST_COUNT, Count, Seconds, Seed, Size, Strict


class _Job(Strict):
    frameworks: ClassVar[tuple[Framework, ...]] = ("torch", "mxnet")
    """Those that its kind has a script for."""
    framework: Framework = "torch"
    """Of the policies that run in either and name none themselves."""
    iterations: int = Field(default=30, ge=3, le=MOST_COUNT)
    """How often each worker trains. The time of the last has no end to measure and is not counted."""
    warmup: int = Field(default=10, ge=0)
    """Iterations at the start in which a policy learns: processor time and the waits of gradients leave them out. What
    iterations take is counted from the start (lab/iterations.py)."""
    batch_size: Count = 32
    """Samples of one worker and iteration."""
    compression: Literal["none", "fp16"] = "none"
    """What gradients travel as: by DistributedDataParallel's fp16_compress_hook, or BytePS's Compression.fp16."""
    seed: Seed = 0

    @model_validator(mode="after")
    def _something_to_measure(self) -> Self:
        if self.warmup > self.iterations - 2:
            raise ValueError(
                f"warmup is {self.warmup}; with {self.iterations} iterations at most {self.iterations - 2}"
            )
        return self


class ScoredJob(_Job):
    """Real training that comes to something: what it has learned is counted at its end."""

    target_accuracy: float = Field(default=0.95, gt=0, le=1)
    """Below this on any worker, the policy has failed."""


class DigitsJob(ScoredJob):
    """Real training on scikit-learn's handwritten digits."""

    kind: Literal["digits"]
    model: Literal["mlp", "cnn"] = "mlp"
    learning_rate: float = Field(default=0.1, gt=0)


class TransformerJob(ScoredJob):
    """A small transformer trained for real on made-up text, with what such jobs are made of.

    AdamW, a learning rate that rises and falls again, and gradients clipped by their norm.
    """

    frameworks: ClassVar[tuple[Framework, ...]] = ("torch",)
    kind: Literal["transformer"]
    framework: Literal["torch"] = "torch"
    model: Literal["small", "medium"] = "small"
    learning_rate: float = Field(default=0.003, gt=0)
    """The highest, at the end of the rise."""
    rising: Count = 10
    """Iterations in which the learning rate rises; afterwards it falls with the square root of their number."""
    clip_norm: float = Field(default=1.0, ge=0)
    """The largest norm of all gradients together that is not scaled down; 0 leaves them as they are."""
    compile: Literal["no", "blocks", "whole"] = "no"
    """What torch.compile is used for: each layer by itself, or the model as one."""
    compile_backend: str = "inductor"
    """Its backend."""
    target_accuracy: float = Field(default=0.5, gt=0, le=1)
    """Of the next word, over text that was not trained on; 0.9 of the words can be known."""


class SyntheticJob(_Job):
    """A known model trained for real on random images: real computing, with nothing to learn."""

    kind: Literal["synthetic"]
    model: Literal["resnet18", "resnet50"] = "resnet18"
    image_size: int = Field(default=32, ge=32, le=512)
    """Pixels on each side; computing grows with its square, and what is sent does not."""
    classes: int = Field(default=1000, ge=2, le=MOST_COUNT)
    learning_rate: float = Field(default=0.01, gt=0)


class ReplayJob(_Job):
    """A recorded job: real gradients on a real network, compute replaced by sleeping."""

    kind: Literal["replay"]
    profile: str = "resnet50"
    """A built-in profile by name, or a file of `prophet profile`, relative to the config."""
    total_bytes: Size | None = None
    """Scales all gradients to this sum."""
    steps: Count | None = None
    """Makes the gradients appear in this many steps of about equal size."""
    device: str | None = None
    """A built-in profile computes as long as is published for `batch_size` samples on this GPU (docs/profiles.md)."""
    backward_s: Seconds | None = None
    forward_s: Seconds | None = None
    stragglers: dict[str, Annotated[float, Field(gt=0, le=MOST_COUNT)]] = Field(default_factory=dict)
    """How many times as long a worker computes, by its name."""


class AsynchronousJob(_Job):
    """A logistic regression on scikit-learn's digits, by workers in step or not: loss against time, computing slept."""

    frameworks: ClassVar[tuple[Framework, ...]] = ("torch",)
    kind: Literal["asynchronous"]
    framework: Literal["torch"] = "torch"
    model: Literal["logistic"] = "logistic"
    features: int = Field(default=16384, ge=64, le=1 << 22)
    """Of each image: the update has 40 bytes for each."""
    learning_rate: float = Field(default=1.0, gt=0)
    """Of one worker's update."""
    delay_constant: float = Field(default=0.0, ge=0)
    """Makes the learning rate follow delays where workers are not in step: c of 1 / (1 / rate + c sqrt(t + delay))."""
    compute_s: Seconds = 0.1
    """What a computation lasts."""
    slow_chance: float = Field(default=0.0, ge=0, le=1)
    slow_factor: float = Field(default=1.0, ge=1, le=MOST_COUNT)
    """With this chance a computation lasts so many times as long."""
    target_loss: float = Field(default=0.3, gt=0)
    """The loss whose time is counted; a policy that does not get there has failed."""


JobConfig = DigitsJob | SyntheticJob | TransformerJob | ReplayJob | AsynchronousJob
JOB_KINDS: Mapping[str, type[Strict]] = MappingProxyType(
    {
        "digits": DigitsJob,
        "synthetic": SyntheticJob,
        "transformer": TransformerJob,
        "replay": ReplayJob,
        "asynchronous": AsynchronousJob,
    }
)
"""The schema of each kind of job."""
