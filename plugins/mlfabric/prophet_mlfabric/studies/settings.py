"""The paper's cluster: workers, NICs, stragglers C1 to C3 and background traffic N1 to N3 (MLfabric, section 7).

Rule of this file: an experiment's settings, and the random draws that follow from a seed. Nothing runs here.

Thirty workers run on fifteen machines, two sharing a machine and its NIC, 10 Gbit/s each way. A computation is slowed
by a factor with some probability. Every `period_s` each direction of each worker machine's NIC draws a rate. The server
and the replica have their own machines, with constant rates. The monitor reports a rate `report_lag_s` late.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from prophet_mlfabric.network import Link, NetworkState, Node

GBIT = 1e9 / 8
"""Bytes per second."""

RESNET50_BYTES = 100e6
RESNET152_BYTES = 240e6


@dataclass(frozen=True)
class Stragglers:
    """Stragglers: with probability `chance` a computation takes `factor` times as long."""

    chance: float
    factor: float


@dataclass(frozen=True)
class TrafficMix:
    """Rates (bytes per second) of a NIC's direction, with probabilities; one is drawn every `period_s`."""

    rates: tuple[float, ...]
    chances: tuple[float, ...]
    period_s: float = 5.0


COMPUTE: Mapping[str, Stragglers] = {
    "C1": Stragglers(0.10, 2.0),
    "C2": Stragglers(0.10, 4.0),
    "C3": Stragglers(0.04, 2.0),
}

_RATES = tuple(rate * GBIT for rate in (1, 2.5, 10 / 3, 5, 10))
NETWORK: Mapping[str, TrafficMix] = {
    "N1": TrafficMix(_RATES, (0.0, 0.0, 0.0, 0.1, 0.9)),
    "N2": TrafficMix(_RATES, (0.0, 0.1, 0.1, 0.1, 0.7)),
    "N3": TrafficMix(_RATES, (0.5, 0.0, 0.0, 0.0, 0.5)),
}


@dataclass(frozen=True)
class Setting:
    """One experiment's cluster. The defaults are the paper's: section 7, and section 2 for computation times.

    `compute_s` is one update's computation, `model_bytes` the size of a model and of an update. `overlap` is the
    fraction of a computation that a ring all-reduce can overlap (section 2: 100 ms of computation and 160 ms of
    communication take 200 ms, so 60 ms); a straggler's overlap is no longer. Batches are ordered every `batch_s`. If
    `eager`, as in real jobs, a batch is ordered sooner if the server's NIC would have nothing left to receive, and a
    model is sent as soon as that NIC has bandwidth left.
    """

    stragglers: Stragglers = COMPUTE["C1"]
    traffic: TrafficMix = NETWORK["N1"]
    workers: int = 30
    machines: int = 15
    bandwidth: float = 10 * GBIT
    model_bytes: float = RESNET50_BYTES
    compute_s: float = 0.1
    overlap: float = 0.6
    batch_s: float = 0.1
    eager: bool = False
    report_lag_s: float = 0.2
    seed: int = 0

    @property
    def server(self) -> Node:
        """Node of the server, after the worker machines."""
        return self.machines

    @property
    def replica(self) -> Node:
        """Node of the replica, after the server."""
        return self.machines + 1

    def machine_of(self, worker: int) -> Node:
        """Return a worker's machine; workers are assigned round-robin."""
        return worker % self.machines


@dataclass(frozen=True)
class Rates:
    """Rates of every NIC over a job: shape (machines, 2, periods), bytes per second; [:, 0] up and [:, 1] down."""

    setting: Setting
    values: np.ndarray[tuple[int, int, int], np.dtype[np.float64]]

    @classmethod
    def draw(cls, setting: Setting, horizon_s: float) -> Rates:
        """Draw rates for at least `horizon_s` seconds; the last ones hold from then on. A seed fixes the draw."""
        periods = max(1, math.ceil(horizon_s / setting.traffic.period_s))
        random = np.random.default_rng([setting.seed, 1])
        shape = (setting.machines, 2, periods)
        # Period by period, so that a longer horizon starts with the rates of a shorter one.
        drawn = random.choice(len(setting.traffic.rates), size=shape[::-1], p=setting.traffic.chances).T
        return cls(setting, np.minimum(np.array(setting.traffic.rates)[drawn], setting.bandwidth))

    def changes(self) -> list[float]:
        """Return the times at which a new period begins, without the first."""
        return [self.setting.traffic.period_s * place for place in range(1, self.values.shape[2])]

    def network(self) -> NetworkState:
        """Return the true NICs over time: worker machines, then server and replica."""
        changes, dedicated = self.changes(), [Link.constant(self.setting.bandwidth)] * 2
        up, down = ([Link.stepwise(changes, row.tolist()) for row in self.values[:, way]] for way in (0, 1))
        return NetworkState([*up, *dedicated], [*down, *dedicated])

    def at(self, time_s: float) -> tuple[list[float], list[float]]:
        """Return the rates of all nodes' uplinks and downlinks at a time; before the start, those at the start."""
        period = min(max(0, int(time_s // self.setting.traffic.period_s)), self.values.shape[2] - 1)
        dedicated, now = [self.setting.bandwidth] * 2, self.values[:, :, period]
        return [*now[:, 0].tolist(), *dedicated], [*now[:, 1].tolist(), *dedicated]

    def reported(self, time_s: float) -> NetworkState:
        """Return the rates that the monitor has reported by `time_s`, as constant from then on."""
        return NetworkState.of_rates(*self.at(time_s - self.setting.report_lag_s))


class Computations:
    """Duration of each computation of each worker; a worker's draws do not depend on the others' progress."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._random = [np.random.default_rng([setting.seed, 2, worker]) for worker in range(setting.workers)]

    def next_s(self, worker: int) -> float:
        slow = self._random[worker].random() < self._setting.stragglers.chance
        return self._setting.compute_s * (self._setting.stragglers.factor if slow else 1.0)
