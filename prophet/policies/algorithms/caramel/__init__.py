"""Caramel (Hashemi et al., arXiv:2004.14020, 2020): computing and all-reduce scheduled together.

`ordering` finds the best order of computing and `enforcement` makes it the only one; `windows` says between when and
when each parameter may travel; `batching` joins small ones; `packing` gives every batch its time in the backward or
the forward pass; `depth` says into how many chunks a transfer is cut. The policy for the queue is
prophet/policies/caramel.py, the costs of the collectives are prophet/simulate/collectives.py.
"""

from prophet.policies.algorithms.caramel.batching import Batch, batch, threshold_bytes
from prophet.policies.algorithms.caramel.depth import adaptive_depth, best_depth, pipelined_s
from prophet.policies.algorithms.caramel.enforcement import control_dependencies, enforce
from prophet.policies.algorithms.caramel.ordering import Activation, activations, best_order
from prophet.policies.algorithms.caramel.packing import PackedSlot, Packing, Place, pack
from prophet.policies.algorithms.caramel.windows import Window, Windows, windows_of_graph, windows_of_profile

__all__ = [
    "Activation",
    "Batch",
    "PackedSlot",
    "Packing",
    "Place",
    "Window",
    "Windows",
    "activations",
    "adaptive_depth",
    "batch",
    "best_depth",
    "best_order",
    "control_dependencies",
    "enforce",
    "pack",
    "pipelined_s",
    "threshold_bytes",
    "windows_of_graph",
    "windows_of_profile",
]
