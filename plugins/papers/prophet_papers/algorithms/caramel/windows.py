"""Transfer boundaries: between when and when each parameter may travel without holding up computing.

Rule of this file: from a profile to windows; what goes where in them is packing.py's. An iteration is
the backward pass, then the forward pass of the next one: what is not sent in the first may be in the second.
Caramel, sections 3.3.1 and 4.3.
"""

from __future__ import annotations

from dataclasses import dataclass

from prophet_scheduler.core.profile import Profile


@dataclass(frozen=True)
class Window:
    """The start boundary is `generated_s` after the backward pass began, the end boundary `read_s` after forward did.

    `size_bytes` travel in between.
    """

    name: str
    size_bytes: int
    generated_s: float
    read_s: float


@dataclass(frozen=True)
class Windows:
    """Parameters in the order in which they are generated, and the seconds that the two passes compute."""

    parameters: tuple[Window, ...]
    backward_s: float
    forward_s: float

    def length_s(self, window: Window) -> float:
        """Seconds from boundary to boundary, if the forward pass follows the backward pass at once."""
        return self.backward_s - window.generated_s + window.read_s


def windows_of_profile(profile: Profile) -> Windows:
    """Layers one after another: parameter n of the result is that of gradient N-1-n, the n-th to be generated."""
    windows = []
    read_s = 0.0
    for gradient in profile.gradients:
        windows.append(Window(gradient.name, gradient.size_bytes, gradient.generation_s, read_s))
        read_s += gradient.forward_s
    return Windows(tuple(reversed(windows)), profile.backward_s, read_s)
