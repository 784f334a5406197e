"""Parameter tensors of the zoo's models.

Rule of this file: one value, and the small builder for models. No model, byte or second.
"""

from __future__ import annotations

from dataclasses import dataclass

CLASSES = 1000
"""Number of classes of image models."""


@dataclass(frozen=True)
class Layer:
    """One parameter tensor, which has one gradient.

    `elements` is its size. `macs` is the number of its multiply-adds in the forward pass of one sample (one image or
    sequence) at the model's input size. Biases, normalisation, look-ups, activations and pooling count as none.
    """

    name: str
    elements: int
    macs: int


class Shapes:
    """Builder of `layers` in forward order. Each method appends the parameters of one operation of a model."""

    def __init__(self) -> None:
        self.layers: list[Layer] = []

    def convolution(
        self, name: str, inputs: int, outputs: int, kernel: int | tuple[int, int], pixels: int, bias: bool = True
    ) -> None:
        """Add a convolution with an output of `pixels` x `pixels`. `kernel` is one side or (height, width)."""
        height, width = (kernel, kernel) if isinstance(kernel, int) else kernel
        weights = inputs * outputs * height * width
        self._add(f"{name}.weight", weights, weights * pixels * pixels)
        if bias:
            self._add(f"{name}.bias", outputs)

    def normalised_convolution(
        self, name: str, inputs: int, outputs: int, kernel: int | tuple[int, int], pixels: int
    ) -> None:
        """Add a convolution without bias, then batch normalisation with a scale and a shift per channel."""
        self.convolution(name, inputs, outputs, kernel, pixels, bias=False)
        self.normalisation(f"{name}.bn", outputs)

    def dense(
        self, name: str, inputs: int, outputs: int, positions: int = 1, more_macs: int = 0, bias: bool = True
    ) -> None:
        """Add a fully connected layer, applied at `positions` positions of a sample.

        `more_macs` is additional work without parameters, such as the products of attention.
        """
        self._add(f"{name}.weight", inputs * outputs, inputs * outputs * positions + more_macs)
        if bias:
            self._add(f"{name}.bias", outputs)

    def lstm(self, name: str, inputs: int, width: int, positions: int, more_macs: int = 0) -> None:
        """Add LSTM cells over `positions` tokens: four gates from the input, four from the previous state."""
        self.dense(f"{name}.input", inputs, 4 * width, positions, more_macs)
        self.dense(f"{name}.state", width, 4 * width, positions)

    def normalisation(self, name: str, width: int, more_macs: int = 0) -> None:
        self._add(f"{name}.weight", width, more_macs)
        self._add(f"{name}.bias", width)

    def embedding(self, name: str, rows: int, width: int) -> None:
        self._add(f"{name}.weight", rows * width)

    def _add(self, name: str, elements: int, macs: int = 0) -> None:
        self.layers.append(Layer(name, elements, macs))
