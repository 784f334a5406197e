"""The papers' tables, simulated: run the configs of configs/papers/, TicTac's models and MLfabric, and keep results.

Rule of this file: the list of runs, and TicTac's own metrics on its own models: the paper's E and S of one worker, and
the gain of an order. Its graphs are from MXNet's model zoo (the extra `mxnet`). No network or framework runs, only the
model of the paper's section 3 (prophet_papers/algorithms/tictac/worker.py). MLfabric's cluster is not a config of the
simulator, so mlfabric_runs.py has its runs. It takes about two minutes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from prophet_mxnet.graph import graph_of_symbol
from prophet_papers.algorithms.tictac.ordering import graph_time, tao, tio
from prophet_papers.algorithms.tictac.worker import Worker, flat_graph, sequential_graph
from prophet_scheduler.core.graph import Graph
from prophet_scheduler.core.network import Network
from prophet_scheduler.core.optional import need
from prophet_scheduler.models.graph_patterns import Pattern
from tools import mlfabric_runs
from tools.kept import Study
from tools.studies import simulated

CONFIGS = Path("configs/papers")
NETWORK = Network(bandwidth=125e6)
"""The paper's 1 Gbit/s Ethernet, in bytes per second, without a cost per message."""
ORDERS = 200
"""Number of random orders whose makespan is computed; TensorFlow without TicTac may take any order."""
TIES = 20
"""Number of random ways to break TIO's ties."""
ZOO = {"AlexNet": ("alexnet", 224), "Inception-v3": ("inception_v3", 299), "VGG-16": ("vgg16", 224)}
"""Model of the paper: (name in the model zoo, side of an image). For InceptionV2 the paper cites Inception-v3's."""


@dataclass(frozen=True)
class Order:
    """One row: the paper's S, its E of each order (Eqs. 3 and 4), and the share by which random orders are slower."""

    model: str
    speedup: float
    chance: float
    tio: float
    tao: float
    gain: float


def judge(model: str, graph: Graph, seed: int = 0) -> Order:
    """Evaluate random, TIO's and TAO's orders of `graph`'s transfers. The same seed gives the same numbers."""
    oracle = graph_time(NETWORK)
    worker, chance = Worker(graph, oracle), np.random.default_rng(seed)
    efficiency = worker.bounds().efficiency
    best_s = worker.makespan_s(tao(graph, oracle))
    by_chance_s = float(np.median([worker.makespan_s(random=chance) for _ in range(ORDERS)]))
    numbers = tio(graph)
    tio_s = float(np.median([worker.makespan_s(numbers, chance) for _ in range(TIES)]))
    return Order(
        model,
        worker.bounds().speedup,
        efficiency(by_chance_s),
        efficiency(tio_s),
        efficiency(best_s),
        by_chance_s / best_s - 1,
    )


def balanced(make: Callable[[float], Graph]) -> float:
    """Return the rate, in operations per second, at which computing `make(rate)` takes as long as receiving its
    parameters.

    The paper chooses a batch size for which S exceeds 0.9, to the same effect: the batch size scales the computing.
    """
    oracle = graph_time(NETWORK)
    graph = make(1.0)
    return sum(oracle(o) for o in graph.computing) / sum(oracle(o) for o in graph.transfers)


def forward_orders() -> list[Order]:
    """Evaluate inference: parameters are received, then used in forward."""
    layer_s = (2 << 20) / NETWORK.bandwidth
    toys = [judge("Par-32", flat_graph(time_s=layer_s)), judge("Seq-32", sequential_graph(time_s=layer_s))]
    return [judge(model, _zoo_graph(model, Pattern.RECEIVE)) for model in ZOO] + toys


def training_orders() -> list[Order]:
    """Evaluate training with inference's batch size: the same, then backward, and gradients are sent."""
    return [judge(model, _zoo_graph(model, Pattern.WORKER)) for model in ZOO]


def _zoo_graph(model: str, pattern: Pattern) -> Graph:
    """Return a model's graph. Raises MissingPackage if MXNet is not installed."""
    mxnet = need("mxnet", "TicTac's models")
    vision = need("mxnet.gluon.model_zoo.vision", "TicTac's models")
    name, side = ZOO[model]
    block = getattr(vision, name)()
    block.initialize()
    block.hybridize()
    symbol = block(mxnet.sym.var("data"))
    shapes = {"data": (1, 3, side, side)}

    def make(rate: float, pattern: Pattern = Pattern.RECEIVE) -> Graph:
        return graph_of_symbol(symbol, shapes, pattern=pattern, flops_per_s=rate, name=model)

    return make(balanced(make), pattern)


@dataclass(frozen=True)
class PapersData:
    """Data of the page: the studies by config, TicTac's orders, and MLfabric's runs."""

    studies: Mapping[str, Study]
    orders: Mapping[str, list[Order]]
    mlfabric: dict[str, Any]


def measure(out: Path, results: Path) -> PapersData:
    """Simulate all, and draw MLfabric's figure in `results`. Raises UserError and MissingPackage."""
    studies = {path.name: simulated(path) for path in sorted(CONFIGS.glob("*.yaml"))}
    orders = {"inference": forward_orders(), "training": training_orders()}
    return PapersData(studies, orders, mlfabric_runs.measure(results))
