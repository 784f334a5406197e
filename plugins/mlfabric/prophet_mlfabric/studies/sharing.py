"""Transfers that share links fairly, as on a network without a scheduler (MLfabric, figure 1a).

Rule of this file: flows, their rates and their ends. The caller knows what a flow carries.

Rates are max-min fair: all flows' rates grow together until a link is full; its flows stop there and the others grow
on. They are recomputed whenever a flow starts or ends or a link changes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

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


class SharedNetwork:
    """Flows between nodes, each with an uplink and a downlink."""

    def __init__(self, up: Sequence[float], down: Sequence[float]) -> None:
        self._nodes = len(up)
        self._now_s = 0.0
        self._ids: NDArray[np.intp] = np.zeros(0, np.intp)
        self._left: NDArray[np.float64] = np.zeros(0)
        self._paths: NDArray[np.intp] = np.zeros((0, 2), np.intp)
        self._rates: NDArray[np.float64] = np.zeros(0)
        self._capacities = np.array([*up, *down], float)
        self._next_id = 0

    def start(self, source: Node, destination: Node, size_bytes: float, now_s: float) -> int:
        """Start a flow. Return its number."""
        self._advance(now_s)
        self._ids = np.append(self._ids, self._next_id)
        self._left = np.append(self._left, size_bytes)
        self._paths = np.vstack((self._paths, [[source, self._nodes + destination]])).astype(np.intp)
        self._next_id += 1
        self._share()
        return self._next_id - 1

    def change(self, up: Sequence[float], down: Sequence[float], now_s: float) -> None:
        """Set the links' rates from now on."""
        self._advance(now_s)
        self._capacities = np.array([*up, *down], float)
        self._share()

    def next_end_s(self) -> float:
        """Return the time at which the next flow ends if nothing changes; infinity without flows."""
        return math.inf if not len(self._ids) else self._now_s + float((self._left / self._rates).min())

    def ended(self, now_s: float) -> list[int]:
        """Remove and return the flows that have ended by now."""
        self._advance(now_s)
        done = self._left <= self._rates * ROUNDING_S
        ended: list[int] = self._ids[done].tolist()
        if ended:
            self._ids, self._left, self._paths = self._ids[~done], self._left[~done], self._paths[~done]
            self._share()
        return ended

    def _advance(self, now_s: float) -> None:
        self._left = self._left - self._rates * (now_s - self._now_s)
        self._now_s = now_s

    def _share(self) -> None:
        self._rates = fair_rates(self._paths, self._capacities)
