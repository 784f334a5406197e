"""How long published measurements say that one GPU computes: forward and backward seconds of a batch.

Rule of this file: numbers as published, each with its source, and the two ways of carrying them over to what was not
published, which always say so. Nothing here was measured by this project.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from prophet_scheduler.core.errors import UserError

MEASURED = "forward and backward as published"
BY_CONVENTION = "from a rate of samples; a third of the time is forward, two thirds backward"
"""Backward has two products for each one of forward: for its input and for its weights."""
FAST_NETWORK = "from a distributed job's rate on its fastest network, so no less than computing; a third is forward"

REFERENCE_MODEL = "resnet50"
"""Measured on every device, so others are carried over by their ratio to it."""


@dataclass(frozen=True)
class Timing:
    """Seconds that `device` computes for a batch of `batch_size` samples; `derived` says how they were obtained."""

    model: str
    device: str
    batch_size: int
    forward_s: float
    backward_s: float
    derived: str
    source: str

    @property
    def samples_per_s(self) -> float:
        return self.batch_size / (self.forward_s + self.backward_s)


_JOHNSON = "github.com/jcjohnson/cnn-benchmarks, README: Torch, cuDNN 5.1.10, 16 images of 224x224"
_CLOUD = "github.com/dmikushin/cnn-benchmarks, README: as jcjohnson/cnn-benchmarks on cloud GPUs; Torch, cuDNN 5.1.10"
_CLOUD_V100 = _CLOUD.replace("5.1.10", "7.0.04")
_TENSORFLOW = "tensorflow.org/performance/benchmarks, May 2017: 1 GPU, synthetic data"
_FINETUNER = "github.com/knjcode/mxnet-finetuner, docs/benchmark.md: MXNet, Maxwell TITAN X"
_PROPHET = "Zhang et al., ICPP 2021, MXNet on g3.8xlarge, 10 Gbit/s"
_NVIDIA = "github.com/NVIDIA/DeepLearningExamples, PyTorch BERT README, July 2019: DGX-1 32 GB, FP32, length not given"

_MILLISECONDS: tuple[tuple[str, str, int, dict[str, tuple[float, float]]], ...] = (
    (
        "m60",
        _CLOUD,
        16,
        {
            "alexnet": (10.79, 24.53),
            "googlenet": (29.46, 63.62),
            "vgg16": (107.41, 233.42),
            "vgg19": (125.61, 277.30),
            "resnet18": (25.89, 52.77),
            "resnet50": (91.89, 173.12),
            "resnet101": (142.62, 257.42),
            "resnet152": (200.83, 359.60),
        },
    ),
    (
        "k80",
        _CLOUD,
        16,
        {
            "alexnet": (15.98, 31.63),
            "googlenet": (45.43, 111.21),
            "vgg16": (153.67, 295.74),
            "vgg19": (179.85, 347.85),
            "resnet18": (37.87, 74.88),
            "resnet50": (124.38, 274.43),
            "resnet101": (199.41, 486.11),
            "resnet152": (283.68, 700.15),
        },
    ),
    (
        "gtx-1080-ti",
        _JOHNSON,
        16,
        {
            "alexnet": (4.31, 9.58),
            "googlenet": (11.50, 25.37),
            "vgg16": (41.23, 86.91),
            "vgg19": (48.15, 100.04),
            "resnet18": (10.45, 22.34),
            "resnet50": (34.14, 67.06),
            "resnet101": (52.18, 102.08),
            "resnet152": (73.52, 142.02),
        },
    ),
    (
        "v100",
        _CLOUD_V100,
        16,
        {
            "alexnet": (3.18, 6.66),
            "googlenet": (7.90, 20.41),
            "vgg16": (23.76, 52.69),
            "vgg19": (27.73, 60.24),
            "resnet18": (6.16, 14.16),
            "resnet50": (19.83, 46.26),
            "resnet101": (31.64, 82.11),
            "resnet152": (44.80, 117.58),
        },
    ),
)
"""Device, source, batch size, and (forward, backward) of each model in milliseconds."""

_RATES: tuple[tuple[str, str, str, int, dict[str, float]], ...] = (
    ("m60", f"{_PROPHET}, table 2 (P3's rate)", FAST_NETWORK, 64, {"resnet50": 72.83}),
    ("m60", f"{_PROPHET}, section 5.3 ('approximately 220')", FAST_NETWORK, 64, {"resnet18": 220.0}),
    (
        "titan-x-maxwell",
        _FINETUNER,
        BY_CONVENTION,
        40,
        {
            "resnet18": 339.09,
            "resnet50": 111.04,
            "resnet101": 68.35,
            "resnet152": 48.62,
            "inception-v3": 82.34,
            "vgg16": 59.35,
            "vgg19": 48.28,
        },
    ),
    (
        "titan-x-maxwell",
        _FINETUNER,
        BY_CONVENTION,
        20,
        {
            "resnet18": 308.30,
            "resnet50": 102.44,
            "resnet101": 63.28,
            "resnet152": 44.89,
            "inception-v3": 75.90,
            "vgg16": 58.01,
            "vgg19": 46.88,
        },
    ),
    (
        "p100",
        f"{_TENSORFLOW}, DGX-1",
        BY_CONVENTION,
        64,
        {"inception-v3": 142.0, "resnet50": 219.0, "resnet152": 91.8, "vgg16": 154.0},
    ),
    (
        "p100",
        f"{_TENSORFLOW}, DGX-1",
        BY_CONVENTION,
        32,
        {"inception-v3": 128.0, "resnet50": 195.0, "resnet152": 82.7, "vgg16": 144.0},
    ),
    ("p100", f"{_TENSORFLOW}, DGX-1", BY_CONVENTION, 512, {"alexnet": 2987.0}),
    ("k80", f"{_TENSORFLOW}, Google n1-standard-32-k80x8", BY_CONVENTION, 64, {"inception-v3": 30.5, "resnet50": 51.9}),
    (
        "k80",
        f"{_TENSORFLOW}, Google n1-standard-32-k80x8",
        BY_CONVENTION,
        32,
        {"inception-v3": 29.3, "resnet50": 49.5, "resnet152": 20.0, "vgg16": 35.4},
    ),
    ("k80", f"{_TENSORFLOW}, Google n1-standard-32-k80x8", BY_CONVENTION, 512, {"alexnet": 656.0}),
    ("v100", _NVIDIA, BY_CONVENTION, 7, {"bert-large": 7.56}),
)
"""Device, source, how it is split, batch size, and samples a second of each model."""

_SIMILAR: dict[str, tuple[str, ...]] = {
    "m60": ("titan-x-maxwell", "k80", "p100"),
    "titan-x-maxwell": ("m60", "k80", "p100"),
    "k80": ("m60", "titan-x-maxwell", "p100"),
    "p100": ("gtx-1080-ti", "v100", "titan-x-maxwell", "k80"),
    "gtx-1080-ti": ("p100", "v100", "titan-x-maxwell", "k80"),
    "v100": ("p100", "gtx-1080-ti", "titan-x-maxwell", "k80"),
}
"""For a device without a time of some model: devices whose ratio of that model to ResNet-50 is used instead, the most
similar first."""

DEVICES = tuple(_SIMILAR)


def published() -> tuple[Timing, ...]:
    """Every published timing, in the order of the tables above."""
    return (*_from_milliseconds(), *_from_rates())


def _from_milliseconds() -> Iterator[Timing]:
    for device, source, batch_size, models in _MILLISECONDS:
        for model, (forward_ms, backward_ms) in models.items():
            yield Timing(model, device, batch_size, forward_ms / 1000, backward_ms / 1000, MEASURED, source)


def _from_rates() -> Iterator[Timing]:
    for device, source, derived, batch_size, models in _RATES:
        for model, samples_per_s in models.items():
            whole_s = batch_size / samples_per_s
            yield Timing(model, device, batch_size, whole_s / 3, whole_s * 2 / 3, derived, source)


def timing(model: str, device: str, batch_size: int) -> Timing:
    """Seconds of a batch on `device`: as published, or carried over, which `derived` then says.

    Without the very batch size, the nearest published one (by ratio, the larger of two) at as many samples a
    second. Without the model on that device, ResNet-50's time there times the ratio of the two models on the most
    similar device that has both. Raises UserError where that is not known either.
    """
    if device not in _SIMILAR:
        raise UserError(f"device {device!r} has no published timings; known are {', '.join(DEVICES)}")
    if batch_size < 1:
        raise UserError(f"batch_size is {batch_size}; it must be at least 1")
    own = _nearest(model, device, batch_size)
    if own is not None:
        return own
    for other in _SIMILAR[device]:
        there, reference_there = _nearest(model, other, batch_size), _nearest(REFERENCE_MODEL, other, batch_size)
        reference = _nearest(REFERENCE_MODEL, device, batch_size)
        if there is None or reference_there is None or reference is None:
            continue
        ratio = reference_there.samples_per_s / there.samples_per_s
        return Timing(
            model,
            device,
            batch_size,
            reference.forward_s * ratio,
            reference.backward_s * ratio,
            f"ResNet-50's time on {device} ({reference.derived}), times {ratio:.3f}, their ratio on {other}",
            f"{reference.source}; {there.source}",
        )
    raise UserError(f"{model} has no published timing to carry over to {device}; give backward_s and forward_s")


def _nearest(model: str, device: str, batch_size: int) -> Timing | None:
    """The timing of this model and device, at the nearest batch size, scaled to `batch_size`."""
    known = [each for each in published() if (each.model, each.device) == (model, device)]
    if not known:
        return None
    best = min(known, key=lambda each: (abs(math.log(each.batch_size / batch_size)), -each.batch_size))
    if best.batch_size == batch_size:
        return best
    by = batch_size / best.batch_size
    return replace(
        best,
        batch_size=batch_size,
        forward_s=best.forward_s * by,
        backward_s=best.backward_s * by,
        derived=f"{best.derived}; scaled from a batch of {best.batch_size}",
    )
