"""Transfer boundaries: between when and when each parameter may travel without holding up computing.

Rule of this file: from a profile or a graph to windows; what goes where in them is packing.py's. An iteration is
the backward pass, then the forward pass of the next one: what is not sent in the first may be in the second.
Caramel, sections 3.3.1 and 4.3.
"""

from __future__ import annotations

from dataclasses import dataclass

from prophet.core.errors import UserError
from prophet.core.graph import Graph, OperationKind
from prophet.core.profile import Profile
from prophet.policies.algorithms.caramel.ordering import activations


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
    """All parameters in the order in which they are generated, and how long the two passes compute. Seconds."""

    parameters: tuple[Window, ...]
    backward_s: float
    forward_s: float

    def length_s(self, window: Window) -> float:
        """From boundary to boundary, if the forward pass follows the backward pass at once."""
        return self.backward_s - window.generated_s + window.read_s


def windows_of_profile(profile: Profile) -> Windows:
    """Layers one after another: parameter n of the result is that of gradient N-1-n, the n-th to be generated."""
    windows = []
    read_s = 0.0
    for gradient in profile.gradients:
        windows.append(Window(gradient.name, gradient.size_bytes, gradient.generation_s, read_s))
        read_s += gradient.forward_s
    return Windows(tuple(reversed(windows)), profile.backward_s, read_s)


def windows_of_graph(graph: Graph) -> Windows:
    """The graph of an exchange: computing in `best_order`, transfers, computing that reads them.

    What no transfer waits for is the forward pass, one operation after another as the graph has them. A parameter
    that nothing reads may travel until that pass ends. Raises UserError where computing that a transfer waits for
    itself waits for a transfer (a graph of TicTac's worker, say): such a parameter has no window.
    """
    steps = activations(graph)
    backward = {name for activation in steps for name in activation.computed}
    backward_s = steps[-1].time_s if steps else 0.0
    transfers = {operation.name for operation in graph.transfers}
    read_s: dict[str, float] = {}
    now = 0.0
    for operation in graph.operations:
        if operation.kind is not OperationKind.COMPUTE:
            continue
        for name in operation.inputs:
            if name in transfers:
                if operation.name in backward:
                    raise UserError(
                        f"graph {graph.name!r}: {operation.name!r} waits for transfer {name!r} and transfers wait for "
                        "it; give a graph of an exchange: backward, transfers, forward"
                    )
                read_s.setdefault(name, now)
        if operation.name not in backward:
            now += operation.time_s
    windows = tuple(
        Window(
            activation.transfer,
            graph[activation.transfer].size_bytes,
            activation.time_s,
            read_s.get(activation.transfer, now),
        )
        for activation in steps
    )
    return Windows(windows, backward_s, now)
