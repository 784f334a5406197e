"""Transfer boundaries: the time window in which each parameter may travel without delaying compute.

Rule of this file: turn a profile into windows; packing.py places transfers in them. An iteration is the backward pass
followed by the next forward pass: transfers that do not fit into the former may go in the latter. Caramel, sections
3.3.1 and 4.3.
"""

from __future__ import annotations

from dataclasses import dataclass

from prophet_scheduler.core.profile import Profile


@dataclass(frozen=True)
class Window:
    """Window for the `size_bytes` of a parameter: from `generated_s` after the start of backward to `read_s` after the
    start of forward.
    """

    name: str
    size_bytes: int
    generated_s: float
    read_s: float


@dataclass(frozen=True)
class Windows:
    """Parameters in generation order, and the compute seconds of the two passes."""

    parameters: tuple[Window, ...]
    backward_s: float
    forward_s: float


def windows_of_profile(profile: Profile) -> Windows:
    """Return the windows of a chain of layers: parameter n of N belongs to gradient N-1-n, the n-th to be generated."""
    windows = []
    read_s = 0.0
    for gradient in profile.gradients:
        windows.append(Window(gradient.name, gradient.size_bytes, gradient.generation_s, read_s))
        read_s += gradient.forward_s
    return Windows(tuple(reversed(windows)), profile.backward_s, read_s)
