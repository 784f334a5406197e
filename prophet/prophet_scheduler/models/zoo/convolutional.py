"""Layer shapes of AlexNet, VGG and ResNet for 1000 classes and 224x224 pixels.

Rule of this file: shapes from the papers, each function with its source. Tests compare totals with published ones.
"""

from __future__ import annotations

from prophet_scheduler.models.zoo.layers import CLASSES, Layer, Shapes


def alexnet() -> list[Layer]:
    """Return one-tower AlexNet: Krizhevsky, "One weird trick for parallelizing convolutional neural networks", 2014.

    It is torchvision's alexnet: 61.1 million parameters, no grouped convolutions.
    """
    shapes = Shapes()
    inputs = 3
    convolutions = ((64, 11, 55), (192, 5, 27), (384, 3, 13), (256, 3, 13), (256, 3, 13))
    for number, (outputs, kernel, pixels) in enumerate(convolutions, start=1):
        shapes.convolution(f"conv{number}", inputs, outputs, kernel, pixels)
        inputs = outputs
    _classifier(shapes, 256 * 6 * 6)
    return shapes.layers


def vgg(*depths: int) -> list[Layer]:
    """Return VGG of Simonyan and Zisserman, ICLR 2015, table 1. `depths` are the numbers of convolutions per stage."""
    shapes = Shapes()
    inputs, pixels = 3, 224
    for stage, (depth, width) in enumerate(zip(depths, (64, 128, 256, 512, 512), strict=True), start=1):
        for number in range(1, depth + 1):
            shapes.convolution(f"conv{stage}_{number}", inputs, width, 3, pixels)
            inputs = width
        pixels //= 2
    _classifier(shapes, inputs * pixels * pixels)
    return shapes.layers


def _classifier(shapes: Shapes, inputs: int) -> None:
    for number, outputs in enumerate((4096, 4096, CLASSES), start=6):
        shapes.dense(f"fc{number}", inputs, outputs)
        inputs = outputs


def resnet(*depths: int, bottleneck: bool = True) -> list[Layer]:
    """Return ResNet of He et al., CVPR 2016, table 1, with projection shortcuts (option B). `depths`: blocks per stage.

    A bottleneck block has its stride in the 3x3 convolution, as in all frameworks today.
    """
    shapes = Shapes()
    shapes.normalised_convolution("conv1", 3, 64, 7, 112)
    channels, pixels = 64, 56
    for stage, (depth, width) in enumerate(zip(depths, (64, 128, 256, 512), strict=True), start=1):
        outputs = 4 * width if bottleneck else width
        for block in range(depth):
            name = f"layer{stage}.{block}"
            after = pixels // 2 if stage > 1 and block == 0 else pixels
            if bottleneck:
                shapes.normalised_convolution(f"{name}.conv1", channels, width, 1, pixels)
                shapes.normalised_convolution(f"{name}.conv2", width, width, 3, after)
                shapes.normalised_convolution(f"{name}.conv3", width, outputs, 1, after)
            else:
                shapes.normalised_convolution(f"{name}.conv1", channels, width, 3, after)
                shapes.normalised_convolution(f"{name}.conv2", width, width, 3, after)
            if block == 0 and (after, outputs) != (pixels, channels):
                shapes.normalised_convolution(f"{name}.downsample", channels, outputs, 1, after)
            channels, pixels = outputs, after
    shapes.dense("fc", channels, CLASSES)
    return shapes.layers
