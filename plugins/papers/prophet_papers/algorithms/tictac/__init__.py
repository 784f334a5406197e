"""TicTac (Hashemi, Jyothi, Campbell, arXiv:1803.03288, SysML 2019): the order in which a worker receives parameters.

`oracle` gives the time of an operation, `ordering` has the two heuristics, `worker` evaluates an order, and `toys` has
the paper's two extreme models. The policy for the queue is in prophet_papers/tictac.py.
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
