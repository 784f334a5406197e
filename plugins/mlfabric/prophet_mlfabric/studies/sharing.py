"""Transfers that share links fairly, as on a network without a scheduler (MLfabric, figure 1a).

Rule of this file: flows, their rates and their ends. The caller knows what a flow carries.

Rates are max-min fair: all flows' rates grow together until a link is full; its flows stop there and the others grow
on. They are recomputed whenever a flow starts or ends or a link changes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from prophet_mlfabric.network import Node

ROUNDING_S = 1e-9
"""A flow has ended if its remaining bytes take less than this, in seconds at its rate."""


def fair_rates(paths: NDArray[np.intp], capacities: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return max-min fair rates (bytes per second). `paths`: shape (flows, links of a flow); `capacities`: by link."""
    rates = np.full(len(paths), np.inf)
    left, open_flows = capacities.astype(float), np.ones(len(paths), bool)
    while open_flows.any():
        users = np.bincount(paths[open_flows].ravel(), minlength=len(left))
        share = np.where(users > 0, left / np.maximum(users, 1), np.inf)
        level = share.min()
        full = open_flows & (share[paths] <= level * (1 + 1e-12)).any(axis=1)
        rates[full] = level
        left -= level * np.bincount(paths[full].ravel(), minlength=len(left))
        left = np.maximum(left, 0.0)
        open_flows &= ~full
    return rates


@dataclass(eq=False)
class Flow:
    """A transfer: uplink and downlink as indices, bytes left, rate, and what to do at its end."""

    path: tuple[int, int]
    left: float
    then: Callable[[], None]
    rate: float = 0.0


class SharedNetwork:
    """Flows between nodes, each with an uplink and a downlink."""

    def __init__(self, up: Sequence[float], down: Sequence[float]) -> None:
        self._nodes, self._now_s = len(up), 0.0
        self._flows: list[Flow] = []
        self._capacities = np.array([*up, *down], float)

    def start(self, source: Node, destination: Node, size_bytes: float, now_s: float, then: Callable[[], None]) -> None:
        """Start a flow."""
        self._advance(now_s)
        self._flows.append(Flow((source, self._nodes + destination), size_bytes, then))
        self._share()

    def change(self, up: Sequence[float], down: Sequence[float], now_s: float) -> None:
        """Set the links' rates from now on."""
        self._advance(now_s)
        self._capacities = np.array([*up, *down], float)
        self._share()

    def next_end_s(self) -> float:
        """Return the time at which the next flow ends if nothing changes; infinity without flows."""
        return self._now_s + min((flow.left / flow.rate for flow in self._flows), default=math.inf)

    def ended(self, now_s: float) -> list[Flow]:
        """Remove and return the flows that have ended by now."""
        self._advance(now_s)
        ended = [flow for flow in self._flows if flow.left <= flow.rate * ROUNDING_S]
        if ended:
            self._flows = [flow for flow in self._flows if flow not in ended]
            self._share()
        return ended

    def _advance(self, now_s: float) -> None:
        for flow in self._flows:
            flow.left -= flow.rate * (now_s - self._now_s)
        self._now_s = now_s

    def _share(self) -> None:
        paths = np.array([flow.path for flow in self._flows], np.intp).reshape(-1, 2)
        for flow, rate in zip(self._flows, fair_rates(paths, self._capacities).tolist(), strict=True):
            flow.rate = rate
