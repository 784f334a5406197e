"""Parameter tensors of a model, as the zoo writes them down.

Rule of this file: one value and the small builder that the models are written with. No model, byte or second is here.
"""

from __future__ import annotations

from dataclasses import dataclass

CLASSES = 1000
"""Classes of the models of images."""


@dataclass(frozen=True)
class Layer:
    """One parameter tensor, which makes one gradient.

    `elements` is its size. `macs` is the number of multiply-adds of the forward pass with it for one sample (one image,
    or one sequence) at the input size of the model. Biases, normalisation, look-ups, activations and pooling count as
    none.
    """

    name: str
    elements: int
    macs: int


class Shapes:
    """Collector of `layers` in forward order; every method appends the parameters of one operation of a model."""

    def __init__(self) -> None:
        self.layers: list[Layer] = []

    def convolution(
        self, name: str, inputs: int, outputs: int, kernel: int | tuple[int, int], pixels: int, bias: bool = True
    ) -> None:
        """Add a convolution with an output of `pixels` x `pixels`; `kernel` is one side or (height, width)."""
        height, width = (kernel, kernel) if isinstance(kernel, int) else kernel
        weights = inputs * outputs * height * width
        self._add(f"{name}.weight", weights, weights * pixels * pixels)
        if bias:
            self._add(f"{name}.bias", outputs)

    def normalised_convolution(
        self, name: str, inputs: int, outputs: int, kernel: int | tuple[int, int], pixels: int
    ) -> None:
        """Add a convolution without bias, then batch normalisation with a scale and a shift a channel."""
        self.convolution(name, inputs, outputs, kernel, pixels, bias=False)
        self.normalisation(f"{name}.bn", outputs)

    def dense(
        self, name: str, inputs: int, outputs: int, positions: int = 1, more_macs: int = 0, bias: bool = True
    ) -> None:
        """Add a fully connected layer, applied at `positions` positions of a sample.

        `more_macs` is work along with it that has no parameters of its own, such as attention's products.
        """
        self._add(f"{name}.weight", inputs * outputs, inputs * outputs * positions + more_macs)
        if bias:
            self._add(f"{name}.bias", outputs)

    def lstm(self, name: str, inputs: int, width: int, positions: int, more_macs: int = 0) -> None:
        """Add LSTM cells over `positions` tokens: four gates from the input, four from the state before."""
        self.dense(f"{name}.input", inputs, 4 * width, positions, more_macs)
        self.dense(f"{name}.state", width, 4 * width, positions)

    def normalisation(self, name: str, width: int, more_macs: int = 0) -> None:
        self._add(f"{name}.weight", width, more_macs)
        self._add(f"{name}.bias", width)

    def embedding(self, name: str, rows: int, width: int) -> None:
        self._add(f"{name}.weight", rows * width)

    def _add(self, name: str, elements: int, macs: int = 0) -> None:
        self.layers.append(Layer(name, elements, macs))
