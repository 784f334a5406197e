"""Caramel (Hashemi et al., arXiv:2004.14020, 2020): compute and all-reduce scheduled together.

`batching` joins small gradients and chooses the number of chunks of a transfer; `packing` assigns each batch a time in
the backward or forward pass. The paper's order of compute operations is not implemented (docs/policies/caramel.md). The
policy for the queue is in prophet_papers/caramel.py, the costs of the collectives are in
prophet_scheduler/simulate/collectives.py.
"""
