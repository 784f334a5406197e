"""Layer shapes of GoogLeNet (Inception-v1) and Inception-v3 for 1000 classes.

Rule of this file: shapes from the papers, each function with its source. Tests compare totals with published ones. The
branches of a block follow one another, as in a framework that runs one operation at a time. Auxiliary classifiers,
which some recipes also train (3.3 million more parameters for Inception-v3), are left out.
"""

from __future__ import annotations

from prophet_scheduler.models.zoo.layers import CLASSES, Layer, Shapes

Branch = tuple[tuple[int, int | tuple[int, int]], ...]
"""Consecutive convolutions, as (outputs, kernel)."""


def googlenet() -> list[Layer]:
    """Return GoogLeNet: Szegedy et al., "Going deeper with convolutions", CVPR 2015, table 1, 224x224, unnormalised."""
    shapes = Shapes()
    shapes.convolution("conv1", 3, 64, 7, 112)
    shapes.convolution("conv2.reduce", 64, 64, 1, 56)
    shapes.convolution("conv2", 64, 192, 3, 56)
    inputs = 192
    # Columns of table 1: #1x1, #3x3 reduce, #3x3, #5x5 reduce, #5x5, pool proj; then the pixels.
    for name, (conv1, reduce3, conv3, reduce5, conv5, pool), pixels in (
        ("inception3a", (64, 96, 128, 16, 32, 32), 28),
        ("inception3b", (128, 128, 192, 32, 96, 64), 28),
        ("inception4a", (192, 96, 208, 16, 48, 64), 14),
        ("inception4b", (160, 112, 224, 24, 64, 64), 14),
        ("inception4c", (128, 128, 256, 24, 64, 64), 14),
        ("inception4d", (112, 144, 288, 32, 64, 64), 14),
        ("inception4e", (256, 160, 320, 32, 128, 128), 14),
        ("inception5a", (256, 160, 320, 32, 128, 128), 7),
        ("inception5b", (384, 192, 384, 48, 128, 128), 7),
    ):
        shapes.convolution(f"{name}.1x1", inputs, conv1, 1, pixels)
        shapes.convolution(f"{name}.3x3reduce", inputs, reduce3, 1, pixels)
        shapes.convolution(f"{name}.3x3", reduce3, conv3, 3, pixels)
        shapes.convolution(f"{name}.5x5reduce", inputs, reduce5, 1, pixels)
        shapes.convolution(f"{name}.5x5", reduce5, conv5, 5, pixels)
        shapes.convolution(f"{name}.pool", inputs, pool, 1, pixels)
        inputs = conv1 + conv3 + conv5 + pool
    shapes.dense("fc", inputs, CLASSES)
    return shapes.layers


def inception_v3() -> list[Layer]:
    """Return Inception-v3 of Szegedy et al., "Rethinking the Inception architecture", CVPR 2016, at 299x299.

    Widths that the paper's figures do not give are from the released model, the same in torchvision and TensorFlow: 94
    convolutions, each with batch normalisation.
    """
    shapes = Shapes()
    inputs = 3
    stem = (("1a", 32, 3, 149), ("2a", 32, 3, 147), ("2b", 64, 3, 147), ("3b", 80, 1, 73), ("4a", 192, 3, 71))
    for name, outputs, kernel, pixels in stem:
        shapes.normalised_convolution(f"conv{name}", inputs, outputs, kernel, pixels)
        inputs = outputs
    for name, pool in (("5b", 32), ("5c", 64), ("5d", 64)):
        branches: tuple[Branch, ...] = (
            ((64, 1),),
            ((48, 1), (64, 5)),
            ((64, 1), (96, 3), (96, 3)),
            ((pool, 1),),
        )
        inputs = _block(shapes, f"mixed{name}", inputs, branches, 35)
    inputs = _block(shapes, "mixed6a", inputs, (((384, 3),), ((64, 1), (96, 3), (96, 3))), 35, 17)
    for name, width in (("6b", 128), ("6c", 160), ("6d", 160), ("6e", 192)):
        branches = (
            ((192, 1),),
            ((width, 1), (width, (1, 7)), (192, (7, 1))),
            ((width, 1), (width, (7, 1)), (width, (1, 7)), (width, (7, 1)), (192, (1, 7))),
            ((192, 1),),
        )
        inputs = _block(shapes, f"mixed{name}", inputs, branches, 17)
    reduction: tuple[Branch, ...] = (
        ((192, 1), (320, 3)),
        ((192, 1), (192, (1, 7)), (192, (7, 1)), (192, 3)),
    )
    inputs = _block(shapes, "mixed7a", inputs, reduction, 17, 8)
    for name in ("7b", "7c"):
        inputs = _widest(shapes, f"mixed{name}", inputs, 8)
    shapes.dense("fc", inputs, CLASSES)
    return shapes.layers


def _branch(shapes: Shapes, name: str, inputs: int, branch: Branch, pixels: int, last_pixels: int) -> int:
    """Append one branch and return its width. Its last convolution has `last_pixels`."""
    for number, (outputs, kernel) in enumerate(branch):
        at = last_pixels if number == len(branch) - 1 else pixels
        shapes.normalised_convolution(f"{name}.{number}", inputs, outputs, kernel, at)
        inputs = outputs
    return inputs


def _block(shapes: Shapes, name: str, inputs: int, branches: tuple[Branch, ...], pixels: int, after: int = 0) -> int:
    """Append parallel branches with concatenated outputs, and return the width.

    A reduction has fewer pixels `after` its branches, which end with stride 2, and a pooled copy of the input.
    """
    width = inputs if after else 0
    for number, branch in enumerate(branches):
        width += _branch(shapes, f"{name}.branch{number}", inputs, branch, pixels, after or pixels)
    return width


def _widest(shapes: Shapes, name: str, inputs: int, pixels: int) -> int:
    """Append the block of figure 7 and return its width. Two branches end in parallel 1x3 and 3x1 convolutions."""
    width = _branch(shapes, f"{name}.branch0", inputs, ((320, 1),), pixels, pixels)
    stems: tuple[Branch, ...] = (((384, 1),), ((448, 1), (384, 3)))
    for number, stem in enumerate(stems, start=1):
        middle = _branch(shapes, f"{name}.branch{number}", inputs, stem, pixels, pixels)
        for side, kernel in (("a", (1, 3)), ("b", (3, 1))):
            shapes.normalised_convolution(f"{name}.branch{number}{side}", middle, 384, kernel, pixels)
            width += 384
    return width + _branch(shapes, f"{name}.branch3", inputs, ((192, 1),), pixels, pixels)
