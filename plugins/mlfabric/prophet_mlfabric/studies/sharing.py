"""A transport without a scheduler: transfers share links fairly (MLfabric, figure 1a).

Rule of this file: flows, their rates and their ends. Rates are max-min fair: all flows' rates grow together until a
link is full; its flows stop there and the others grow on. They are recomputed whenever a flow starts or ends or a link
changes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from prophet_mlfabric.network import Node
from prophet_mlfabric.ordering import Update
from prophet_mlfabric.studies.settings import Rates

if TYPE_CHECKING:
    from prophet_mlfabric.studies.cluster import StudiedCluster

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
class SharedFlow:
    """A transfer: uplink and downlink as indices, bytes left, what to do at its end, and its rate."""

    path: tuple[int, int]
    left: float
    then: Callable[[], None]
    rate: float = 0.0


class Shared:
    """A parameter server: updates are applied in order of arrival, and models are sent at once."""

    def __init__(self, cluster: StudiedCluster, rates: Rates) -> None:
        self._cluster, self._rates = cluster, rates
        self._nodes = cluster.setting.machines + 2
        self._flows: list[SharedFlow] = []
        self._now_s = 0.0
        self._generation = 0
        for change in rates.changes():
            cluster.agenda.at(change, self._share)

    def push(self, worker: int, update: Update) -> None:
        self._cluster.record.sent_to_server += 1
        self._start(update.node, self._cluster.setting.server, partial(self._cluster.applied, [update]))

    def pull(self, worker: int) -> None:
        cluster, setting = self._cluster, self._cluster.setting
        model = cluster.learner.read()
        then = partial(cluster.has_model, worker, model, cluster.version)
        self._start(setting.server, setting.machine_of(worker), then)

    def _start(self, source: Node, destination: Node, then: Callable[[], None]) -> None:
        self._advance()
        self._flows.append(SharedFlow((source, self._nodes + destination), self._cluster.setting.model_bytes, then))
        self._share()

    def _advance(self) -> None:
        for flow in self._flows:
            flow.left -= flow.rate * (self._cluster.now_s - self._now_s)
        self._now_s = self._cluster.now_s

    def _share(self) -> None:
        """Compute all rates from now on, and the next end."""
        self._advance()
        up, down = self._rates.at(self._now_s)
        paths = np.array([flow.path for flow in self._flows], np.intp).reshape(-1, 2)
        for flow, rate in zip(self._flows, fair_rates(paths, np.array([*up, *down])).tolist(), strict=True):
            flow.rate = rate
        self._generation += 1
        if self._flows:
            end_s = self._now_s + min(flow.left / flow.rate for flow in self._flows)
            self._cluster.agenda.at(end_s, partial(self._ended, self._generation))

    def _ended(self, generation: int) -> None:
        if generation != self._generation:
            return
        self._advance()
        ended = [flow for flow in self._flows if flow.left <= flow.rate * ROUNDING_S]
        self._flows = [flow for flow in self._flows if flow not in ended]
        self._share()
        for flow in ended:
            flow.then()
