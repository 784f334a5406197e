"""Caramel (Hashemi et al., arXiv:2004.14020, 2020): computing and all-reduce scheduled together.

`windows` says between when and when each parameter may travel; `batching` joins small ones; `packing` gives every
batch its time in the backward or the forward pass; `depth` says into how many chunks a transfer is cut. The paper's
other part, an order of computing, is not here (docs/policies/caramel.md). The policy for the queue is
prophet_papers/caramel.py, the costs of the collectives are prophet_scheduler/simulate/collectives.py.
"""

from prophet_papers.algorithms.caramel.batching import Batch, batch, threshold_bytes
from prophet_papers.algorithms.caramel.depth import adaptive_depth, best_depth, pipelined_s
from prophet_papers.algorithms.caramel.packing import PackedSlot, Packing, Place, pack
from prophet_papers.algorithms.caramel.windows import Window, Windows, windows_of_profile

__all__ = [
    "Batch",
    "PackedSlot",
    "Packing",
    "Place",
    "Window",
    "Windows",
    "adaptive_depth",
    "batch",
    "best_depth",
    "pack",
    "pipelined_s",
    "threshold_bytes",
    "windows_of_profile",
]
