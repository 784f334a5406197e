"""The parameter tensors of a model, as the zoo writes them down.

Rule of this file: one value and the small builder that the models are written with. No model, byte or second is here.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class LayerKind(enum.StrEnum):
    """What a parameter tensor does in its model."""

    CONVOLUTION = "convolution"
    DENSE = "dense"
    NORMALISATION = "normalisation"
    BIAS = "bias"
    EMBEDDING = "embedding"


@dataclass(frozen=True)
class Layer:
    """One parameter tensor, which makes one gradient.

    `elements` is how many numbers it has; `macs` how many multiplications with an addition the forward pass does with
    it for one sample (one image, or one sequence) at the input size that the model's function names. Biases,
    normalisation and look-ups count as none, and so do activations and pooling.
    """

    name: str
    elements: int
    macs: int
    kind: LayerKind


class Shapes:
    """Collects `layers` in forward order; every method appends what one operation of a model has as parameters."""

    def __init__(self) -> None:
        self.layers: list[Layer] = []

    def convolution(
        self,
        name: str,
        inputs: int,
        outputs: int,
        kernel: int | tuple[int, int],
        pixels: int,
        bias: bool = True,
    ) -> None:
        """A convolution whose output has `pixels` x `pixels` positions; `kernel` is one side or (height, width)."""
        height, width = (kernel, kernel) if isinstance(kernel, int) else kernel
        weights = inputs * outputs * height * width
        self._add(f"{name}.weight", weights, weights * pixels * pixels, LayerKind.CONVOLUTION)
        if bias:
            self._add(f"{name}.bias", outputs, 0, LayerKind.BIAS)

    def normalised_convolution(
        self, name: str, inputs: int, outputs: int, kernel: int | tuple[int, int], pixels: int
    ) -> None:
        """A convolution without bias, then batch normalisation with a scale and a shift a channel."""
        self.convolution(name, inputs, outputs, kernel, pixels, bias=False)
        self.normalisation(f"{name}.bn", outputs)

    def dense(
        self, name: str, inputs: int, outputs: int, positions: int = 1, more_macs: int = 0, bias: bool = True
    ) -> None:
        """A fully connected layer, applied at `positions` positions of a sample.

        `more_macs` is work without parameters of its own that is done along with it, such as attention's products.
        """
        self._add(f"{name}.weight", inputs * outputs, inputs * outputs * positions + more_macs, LayerKind.DENSE)
        if bias:
            self._add(f"{name}.bias", outputs, 0, LayerKind.BIAS)

    def lstm(self, name: str, inputs: int, width: int, positions: int, more_macs: int = 0) -> None:
        """A layer of LSTM cells over `positions` tokens: four gates from the input, four from the state before."""
        self.dense(f"{name}.input", inputs, 4 * width, positions, more_macs)
        self.dense(f"{name}.state", width, 4 * width, positions)

    def normalisation(self, name: str, width: int, more_macs: int = 0) -> None:
        self._add(f"{name}.weight", width, more_macs, LayerKind.NORMALISATION)
        self._add(f"{name}.bias", width, 0, LayerKind.NORMALISATION)

    def embedding(self, name: str, rows: int, width: int) -> None:
        self._add(f"{name}.weight", rows * width, 0, LayerKind.EMBEDDING)

    def _add(self, name: str, elements: int, macs: int, kind: LayerKind) -> None:
        self.layers.append(Layer(name, elements, macs, kind))
