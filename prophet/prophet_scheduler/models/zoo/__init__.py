"""The zoo: profiles of real models, made from their layer shapes.

Rule of this file: the models by name, and their default steps and times. The other files in this folder have the
shapes, stepwise.py makes profiles from layers, and timings.py has published times. docs/profiles.md lists it all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.profile import Profile
from prophet_scheduler.models.zoo import attention, convolutional, inception
from prophet_scheduler.models.zoo.layers import Layer
from prophet_scheduler.models.zoo.stepwise import Pattern, make_profile
from prophet_scheduler.models.zoo.timings import timing

_SHAPES: Mapping[str, Callable[[], list[Layer]]] = {
    "resnet50": partial(convolutional.resnet, 3, 4, 6, 3),
    "resnet18": partial(convolutional.resnet, 2, 2, 2, 2, bottleneck=False),
    "resnet101": partial(convolutional.resnet, 3, 4, 23, 3),
    "resnet152": partial(convolutional.resnet, 3, 8, 36, 3),
    "inception-v3": inception.inception_v3,
    "googlenet": inception.googlenet,
    "vgg16": partial(convolutional.vgg, 2, 2, 3, 3, 3),
    "vgg19": partial(convolutional.vgg, 2, 2, 4, 4, 4),
    "alexnet": convolutional.alexnet,
    "bert-base": partial(attention.bert, depth=12, width=768),
    "bert-large": partial(attention.bert, depth=24, width=1024),
    "transformer": attention.transformer,
    "transformer-untied": attention.transformer_untied,
    "seq2seq": attention.seq2seq,
}

MODELS = tuple(_SHAPES)
"""Names of the models."""
DEFAULT_DEVICE = "m60"
"""GPU of the Prophet paper's g3.8xlarge instances."""
_PUBLISHED_STEPS: Mapping[str, int | Pattern] = {"resnet50": 13, "vgg19": ((0, 1), (2, 13), (14, 27), (28, 37))}
"""Stepwise patterns in the paper: ResNet-50 in MXNet in figure 4, VGG-19 in TensorFlow in the text of section 2.2."""
_GRADIENTS_A_STEP = 157 / 13
"""Gradients per step of ResNet-50 in figure 4, which has 157 gradients. Frameworks deliver gradients after a number of
operations rather than after a time, so other models in the same framework should have about as many per step."""
_RESNET50_BACKWARD_S, _RESNET50_FORWARD_S = 0.6, 0.3
"""Computing times of ResNet-50 in this project's replays: about a batch of 64 on the paper's GPU (table 2)."""


def layers(model: str) -> tuple[Layer, ...]:
    """Return the parameter tensors of `model` in forward order. Raises UserError listing the known models."""
    if model not in _SHAPES:
        raise UserError(f"unknown model {model!r}; known models are {', '.join(MODELS)}")
    return tuple(_SHAPES[model]())


def default_steps(model: str) -> int | Pattern:
    """Return the paper's stepwise pattern, or a number of equal steps with about as many gradients as ResNet-50's."""
    return _PUBLISHED_STEPS.get(model) or max(2, round(len(layers(model)) / _GRADIENTS_A_STEP))


def profile(
    model: str,
    *,
    batch_size: int | None = None,
    device: str = DEFAULT_DEVICE,
    total_bytes: int | None = None,
    steps: int | None = None,
    backward_s: float | None = None,
    forward_s: float | None = None,
) -> Profile:
    """Return the profile of `model`: sizes from its shapes, times from its work.

    `total_bytes` scales the sizes to that sum. `steps` is the number of equal intervals of the backward pass, by
    default from default_steps. `backward_s` and `forward_s` are the seconds of the two passes. They default to
    published times for `batch_size` samples on `device` or, without a batch size, to ResNet-50's 0.6 s and 0.3 s scaled
    by the work of this model.

    Raises UserError for an unknown model or device, a batch size without published times, and numbers that give no
    valid profile.
    """
    shapes = layers(model)
    if batch_size is not None and (backward_s is None or forward_s is None):
        default_forward_s, default_backward_s = timing(model, device, batch_size)
    else:
        share = _work(shapes) / _work(layers("resnet50"))
        default_backward_s, default_forward_s = _RESNET50_BACKWARD_S * share, _RESNET50_FORWARD_S * share
    return make_profile(
        model,
        shapes,
        total_bytes=total_bytes,
        steps=default_steps(model) if steps is None else steps,
        backward_s=default_backward_s if backward_s is None else backward_s,
        forward_s=default_forward_s if forward_s is None else forward_s,
    )


def _work(shapes: tuple[Layer, ...]) -> int:
    return sum(layer.macs for layer in shapes)
