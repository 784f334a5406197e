"""The worker's end of the coordinator's connection."""

from __future__ import annotations
