"""Testbed: a cluster on one machine, in network namespaces joined by links of chosen bandwidth and delay.

Needs root or user namespaces.
"""

from __future__ import annotations

from .namespaces import reexec_in_user_namespace, require_namespaces
from .testbed import NodeSpec, Testbed

__all__ = ["NodeSpec", "Testbed", "reexec_in_user_namespace", "require_namespaces"]
