"""The jobs of a config: training or replay.

Rule of this file: the schema of `job`, one class a kind, and its checks. Sizes are bytes, times seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, ClassVar, Literal, get_args

from pydantic import Field, model_validator
from typing_extensions import Self

from prophet_scheduler.engines.spec import Framework
from prophet_scheduler.lab.schema import MOST_COUNT, Count, Seconds, Seed, Size, Strict


class _Job(Strict):
    frameworks: ClassVar[tuple[Framework, ...]] = ("torch", "mxnet")
    """Frameworks with a script for this kind."""
    framework: Framework = "torch"
    """Framework of policies that run in either and name none."""
    iterations: int = Field(default=30, ge=3, le=MOST_COUNT)
    """Iterations of each worker. The last one does not count, because its end cannot be measured."""
    warmup: int = Field(default=10, ge=0)
    """First iterations, in which a policy learns. Processor time and waits of gradients exclude them; iteration times
    include them (lab/iterations.py)."""
    batch_size: Count = 32
    """Samples of one worker and iteration."""
    compression: Literal["none", "fp16"] = "none"
    """Form in which gradients travel: DistributedDataParallel's fp16_compress_hook, or BytePS's Compression.fp16."""
    seed: Seed = 0

    @model_validator(mode="after")
    def _something_to_measure(self) -> Self:
        if self.warmup > self.iterations - 2:
            raise ValueError(
                f"warmup is {self.warmup}; with {self.iterations} iterations at most {self.iterations - 2}"
            )
        return self


class ScoredJob(_Job):
    """Real training whose accuracy is measured at its end."""

    target_accuracy: float = Field(default=0.95, gt=0, le=1)
    """Accuracy below which, on any worker, the policy has failed."""


class DigitsJob(ScoredJob):
    """Real training on scikit-learn's handwritten digits."""

    kind: Literal["digits"]
    model: Literal["mlp", "cnn"] = "mlp"
    learning_rate: float = Field(default=0.1, gt=0)


class TransformerJob(ScoredJob):
    """A small transformer trained for real on made-up text, with the usual parts of such jobs.

    These are AdamW, a learning rate that rises and then falls, and gradients clipped by their norm.
    """

    frameworks: ClassVar[tuple[Framework, ...]] = ("torch",)
    kind: Literal["transformer"]
    framework: Literal["torch"] = "torch"
    model: Literal["small", "medium"] = "small"
    learning_rate: float = Field(default=0.003, gt=0)
    """Peak learning rate, at the end of the rise."""
    rising: Count = 10
    """Iterations in which the learning rate rises; afterwards it falls with the square root of their number."""
    clip_norm: float = Field(default=1.0, ge=0)
    """Norm of all gradients together above which they are scaled down; 0 never scales them."""
    compile: Literal["no", "blocks", "whole"] = "no"
    """Use of torch.compile: on each layer by itself, or on the whole model."""
    compile_backend: str = "inductor"
    """Backend of torch.compile."""
    target_accuracy: float = Field(default=0.5, gt=0, le=1)
    """Accuracy for the next word, over text not trained on; 0.9 of the words can be known."""


class SyntheticJob(_Job):
    """A known model trained for real on random images: real computing, with nothing to learn."""

    kind: Literal["synthetic"]
    model: Literal["resnet18", "resnet50"] = "resnet18"
    image_size: int = Field(default=32, ge=32, le=512)
    """Pixels on each side; computing grows with its square, the bytes sent do not."""
    classes: int = Field(default=1000, ge=2, le=MOST_COUNT)
    learning_rate: float = Field(default=0.01, gt=0)


class ReplayJob(_Job):
    """A recorded job: real gradients on a real network, compute replaced by sleeping."""

    kind: Literal["replay"]
    profile: str = "resnet50"
    """Name of a built-in profile, or path of a file for `prophet profile`, relative to the config."""
    total_bytes: Size | None = None
    """Sum of all gradients' sizes after scaling."""
    steps: Count | None = None
    """Number of steps, of about equal size, in which the gradients appear."""
    device: str | None = None
    """GPU whose published times for `batch_size` samples a built-in profile takes (docs/profiles.md)."""
    backward_s: Seconds | None = None
    forward_s: Seconds | None = None
    stragglers: dict[str, Annotated[float, Field(gt=0, le=MOST_COUNT)]] = Field(default_factory=dict)
    """Factor by which a worker's computing takes longer, by the worker's name."""
    clip_norm: float = Field(default=0.0, ge=0)
    """Norm of all gradients together above which they are scaled down, in torch; 0 never scales them."""

    @model_validator(mode="after")
    def _clips_in_torch(self) -> Self:
        if self.clip_norm and self.framework != "torch":
            raise ValueError(f"clip_norm is {self.clip_norm}; replays in {self.framework} clip nothing")
        return self


class AsynchronousJob(_Job):
    """Logistic regression on scikit-learn's digits, workers in step or not: loss against time, computing as sleep."""

    frameworks: ClassVar[tuple[Framework, ...]] = ("torch",)
    kind: Literal["asynchronous"]
    framework: Literal["torch"] = "torch"
    model: Literal["logistic"] = "logistic"
    features: int = Field(default=16384, ge=64, le=1 << 22)
    """Features of each image; the update has 40 bytes for each feature."""
    learning_rate: float = Field(default=1.0, gt=0)
    """Learning rate of one worker's update."""
    delay_constant: float = Field(default=0.0, ge=0)
    """c of the learning rate 1 / (1 / rate + c sqrt(t + delay)), which follows delays of workers not in step."""
    compute_s: Seconds = 0.1
    """Time of a computation."""
    slow_chance: float = Field(default=0.0, ge=0, le=1)
    slow_factor: float = Field(default=1.0, ge=1, le=MOST_COUNT)
    """Factor by which a computation takes longer, with chance `slow_chance`."""
    target_loss: float = Field(default=0.3, gt=0)
    """Loss whose time is measured; a policy that does not reach it has failed."""


JobConfig = DigitsJob | SyntheticJob | TransformerJob | ReplayJob | AsynchronousJob
JOB_KINDS: Mapping[str, type[Strict]] = MappingProxyType(
    {get_args(job.model_fields["kind"].annotation)[0]: job for job in get_args(JobConfig)}
)
"""Schema of each kind of job."""
