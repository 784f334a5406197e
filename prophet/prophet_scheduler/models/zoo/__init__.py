"""The zoo: real models as profiles, made from their layer shapes.

Rule of this file: the models by name, and which pattern and times each has by default; shapes are in the files beside
it, the way from layers to a profile in stepwise.py, published times in timings.py. docs/profiles.md lists it all.
"""

from __future__ import annotations

from collections.abc import Callable

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.profile import Profile
from prophet_scheduler.models.zoo import attention, convolutional, inception
from prophet_scheduler.models.zoo.layers import Layer, LayerKind
from prophet_scheduler.models.zoo.stepwise import Pattern, make_profile
from prophet_scheduler.models.zoo.timings import DEVICES, Timing, published, timing

__all__ = [
    "DEFAULT_DEVICE",
    "DEVICES",
    "MODELS",
    "Layer",
    "LayerKind",
    "Pattern",
    "Timing",
    "default_steps",
    "layers",
    "profile",
    "published",
    "timing",
]

_SHAPES: dict[str, Callable[[], list[Layer]]] = {
    "resnet50": convolutional.resnet50,
    "resnet18": convolutional.resnet18,
    "resnet101": convolutional.resnet101,
    "resnet152": convolutional.resnet152,
    "inception-v3": inception.inception_v3,
    "googlenet": inception.googlenet,
    "vgg16": convolutional.vgg16,
    "vgg19": convolutional.vgg19,
    "alexnet": convolutional.alexnet,
    "bert-base": attention.bert_base,
    "bert-large": attention.bert_large,
    "transformer": attention.transformer,
    "transformer-untied": attention.transformer_untied,
    "seq2seq": attention.seq2seq,
}

MODELS = tuple(_SHAPES)
"""Names of the models."""

DEFAULT_DEVICE = "m60"
"""The GPU of the Prophet paper's g3.8xlarge instances."""

_PUBLISHED_STEPS: dict[str, int | Pattern] = {
    "resnet50": 13,
    "vgg19": ((0, 1), (2, 13), (14, 27), (28, 37)),
}
"""The stepwise patterns that the paper gives: figure 4 for ResNet-50 in MXNet, the text of section 2.2 for VGG-19 in
TensorFlow."""
_GRADIENTS_A_STEP = 157 / 13
"""ResNet-50's in figure 4, which numbers its gradients 0 to 156. A framework hands gradients over after so many
operations, not after so much time, so other models of the same framework should have about as many in a step."""

_RESNET50_BACKWARD_S = 0.6
_RESNET50_FORWARD_S = 0.3
"""What the replays of this project compute for ResNet-50: about a batch of 64 on the paper's GPU (table 2)."""


def layers(model: str) -> tuple[Layer, ...]:
    """The parameter tensors of `model` in forward order. Raises UserError listing the known models."""
    if model not in _SHAPES:
        raise UserError(f"unknown model {model!r}; known models are {', '.join(MODELS)}")
    return tuple(_SHAPES[model]())


def default_steps(model: str) -> int | Pattern:
    """The model's stepwise pattern: the paper's, or else as many equal steps as ResNet-50 has for its gradients."""
    if model in _PUBLISHED_STEPS:
        return _PUBLISHED_STEPS[model]
    return max(2, round(len(layers(model)) / _GRADIENTS_A_STEP))


def profile(
    model: str,
    *,
    batch_size: int | None = None,
    device: str = DEFAULT_DEVICE,
    total_bytes: int | None = None,
    steps: int | None = None,
    backward_s: float | None = None,
    forward_s: float | None = None,
    pattern: Pattern | None = None,
) -> Profile:
    """The gradients of `model`: sizes from its shapes, times from its work.

    `total_bytes` scales the sizes to that sum. `steps` cuts the backward pass into intervals of equal time, `pattern`
    says instead which gradients appear together; without either the model has its default_steps. `backward_s` and
    `forward_s` are the seconds of the two passes. Where one is left out, it is the published one for `batch_size`
    samples on `device`; without a batch size, as much as ResNet-50's 0.6 s and 0.3 s for the work of this model.

    Raises UserError for an unknown model or device, a model without published times where a batch size is given, and
    for numbers that make no profile.
    """
    shapes = layers(model)
    if steps is not None and pattern is not None:
        raise UserError(f"profile {model}: give steps or pattern, not both")
    if batch_size is not None and (backward_s is None or forward_s is None):
        known = timing(model, device, batch_size)
        default_backward_s, default_forward_s = known.backward_s, known.forward_s
    else:
        share = _work(shapes) / _work(layers("resnet50"))
        default_backward_s, default_forward_s = _RESNET50_BACKWARD_S * share, _RESNET50_FORWARD_S * share
    if steps is None and pattern is None:
        pattern_or_steps = default_steps(model)
    else:
        pattern_or_steps = steps if steps is not None else pattern or ()
    return make_profile(
        model,
        shapes,
        total_bytes=total_bytes,
        steps=pattern_or_steps,
        backward_s=default_backward_s if backward_s is None else backward_s,
        forward_s=default_forward_s if forward_s is None else forward_s,
    )


def _work(shapes: tuple[Layer, ...]) -> int:
    return sum(layer.macs for layer in shapes)
