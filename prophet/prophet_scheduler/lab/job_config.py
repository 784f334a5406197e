"""Jobs of a config: training or replay.

Rule of this file: the schema of `job`, one class per kind, and its checks. Sizes are bytes, times seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, ClassVar, Literal, get_args

from pydantic import Field, TypeAdapter, model_validator
from typing_extensions import Self

from prophet_scheduler.engines.spec import Framework
from prophet_scheduler.lab.schema import MOST_COUNT, Count, Seconds, Seed, Size, Strict


class _Job(Strict):
    frameworks: ClassVar[tuple[Framework, ...]] = ("torch", "mxnet")
    """Frameworks with a script for this kind of job."""
    iterations: int = Field(default=30, ge=3, le=MOST_COUNT)
    """Number of iterations of each worker. The last one does not count, because its end cannot be measured."""
    warmup: int = Field(default=10, ge=0)
    """Number of first iterations, in which a policy learns. CPU time and gradients' waits exclude them; iteration times
    include them (lab/iterations.py)."""
    batch_size: Count = 32
    """Samples per worker and iteration."""
    compression: Literal["none", "fp16"] = "none"
    """Compression on the wire: fp16 is DistributedDataParallel's fp16_compress_hook, or BytePS's Compression.fp16."""
    seed: Seed = 0

    @model_validator(mode="after")
    def _something_to_measure(self) -> Self:
        if self.warmup > self.iterations - 2:
            raise ValueError(
                f"warmup is {self.warmup}; with {self.iterations} iterations it can be at most {self.iterations - 2}"
            )
        return self


class ScoredJob(_Job):
    """Real training whose accuracy is measured at the end."""

    target_accuracy: float = Field(default=0.95, gt=0, le=1)
    """Accuracy below which the policy has failed, on any worker."""


class DigitsJob(ScoredJob):
    """Real training on scikit-learn's handwritten digits."""

    kind: Literal["digits"]
    model: Literal["mlp"] = "mlp"


class TransformerJob(ScoredJob):
    """Real training of a small transformer on made-up text, with the usual parts of such jobs.

    These are AdamW, a learning rate that rises and then falls, and clipping by the norm of all gradients.
    """

    frameworks: ClassVar[tuple[Framework, ...]] = ("torch",)
    kind: Literal["transformer"]
    model: Literal["small", "medium"] = "small"
    clip_norm: float = Field(default=1.0, ge=0)
    """Total norm of the gradients above which they are scaled down; 0 to never clip."""
    compile: Literal["no", "blocks", "whole"] = "no"
    """Use of torch.compile: on each layer (`blocks`) or on the whole model (`whole`)."""
    target_accuracy: float = Field(default=0.5, gt=0, le=1)
    """Share of next words to predict right in text not trained on; 0.9 of the words are predictable."""


class SyntheticJob(_Job):
    """Real training of a known model on random images: real compute, but nothing to learn."""

    kind: Literal["synthetic"]
    model: Literal["resnet18", "resnet50"] = "resnet18"
    image_size: int = Field(default=32, ge=32, le=512)
    """Pixels per side; compute grows with its square, while the bytes sent stay the same."""


class ReplayJob(_Job):
    """Replay of a recorded job: real gradients on a real network, compute replaced by sleeping."""

    kind: Literal["replay"]
    profile: str = "resnet50"
    """Name of a built-in profile, or path of a profile's file (as for `prophet profile`), relative to the config."""
    total_bytes: Size | None = None
    """Total size of all gradients after scaling."""
    steps: Count | None = None
    """Number of steps, of about equal size, in which the gradients become available."""
    device: str | None = None
    """GPU whose published times, for `batch_size` samples, a built-in profile uses (docs/profiles.md)."""
    backward_s: Seconds | None = None
    forward_s: Seconds | None = None
    clip_norm: float = Field(default=0.0, ge=0)
    """Total norm of the gradients above which they are scaled down, in torch; 0 to never clip."""


class AsynchronousJob(_Job):
    """Logistic regression on scikit-learn's digits, synchronous or asynchronous: loss against time, compute slept."""

    frameworks: ClassVar[tuple[Framework, ...]] = ("torch",)
    kind: Literal["asynchronous"]
    model: Literal["logistic"] = "logistic"
    features: int = Field(default=16384, ge=64, le=1 << 22)
    """Number of features of each image; an update has 40 bytes per feature."""
    learning_rate: float = Field(default=1.0, gt=0)
    """Learning rate of one worker's update."""
    compute_s: Seconds = 0.1
    """Time of one computation."""
    slow_chance: float = Field(default=0.0, ge=0, le=1)
    slow_factor: float = Field(default=1.0, ge=1, le=MOST_COUNT)
    """Factor by which a computation takes longer, with probability `slow_chance`."""
    target_loss: float = Field(default=0.3, gt=0)
    """Target loss, the time to which is measured; a policy that does not reach it has failed."""


JobConfig = DigitsJob | SyntheticJob | TransformerJob | ReplayJob | AsynchronousJob
JOB_KINDS: Mapping[str, type[Strict]] = MappingProxyType(
    {get_args(job.model_fields["kind"].annotation)[0]: job for job in get_args(JobConfig)}
)
"""Schema of each kind of job."""
JOB: TypeAdapter[JobConfig] = TypeAdapter(Annotated[JobConfig, Field(discriminator="kind")])
"""Reader of the job that the runner writes for its workers."""
