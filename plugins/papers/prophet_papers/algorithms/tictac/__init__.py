"""TicTac (Hashemi, Jyothi, Campbell, arXiv:1803.03288, SysML 2019): in which order a worker receives parameters.

`oracle` says how long an operation takes, `ordering` has the two heuristics, `worker` what an order is worth, and
`toys` the paper's two extreme models. The policy for the queue is prophet_papers/tictac.py.
"""

from prophet_papers.algorithms.tictac.oracle import TimeOracle, general_time, graph_time
from prophet_papers.algorithms.tictac.ordering import Properties, precedes, properties, received, tao, tio
from prophet_papers.algorithms.tictac.toys import flat_graph, sequential_graph
from prophet_papers.algorithms.tictac.worker import Bounds, Worker

__all__ = [
    "Bounds",
    "Properties",
    "TimeOracle",
    "Worker",
    "flat_graph",
    "general_time",
    "graph_time",
    "precedes",
    "properties",
    "received",
    "sequential_graph",
    "tao",
    "tio",
]
