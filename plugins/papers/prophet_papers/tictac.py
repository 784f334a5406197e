"""TicTac (Hashemi et al., SysML 2019) as a policy for the queue: an order from the model's graph.

Rule of this file: turn a profile and a graph into a plan; the heuristics are in algorithms/tictac/.

Mapping of the paper to the queue: The paper orders the parameters that a TensorFlow worker receives at the start of an
iteration. All of them exist by then, so a counter at the sender holds each one until those before it are sent. Here
gradients become available during the backward pass, the most urgent last, and a counter would make all of them wait
for number 0. So the numbers order those that are ready, for pushes and for pulls.

In the paper the wire is never idle between two transfers (section 5.1), and a tensor is never cut. A credit of the
largest gradient achieves both.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from prophet_papers.algorithms.tictac.ordering import graph_time, tao, tio
from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.graph import Graph, Operation, OperationKind
from prophet_scheduler.core.network import Network
from prophet_scheduler.core.plan import Plan, QueuePlan
from prophet_scheduler.core.profile import Profile
from prophet_scheduler.policies import Blocks, Definition
from prophet_scheduler.policies.algorithms.plans import ONE_TASK


class TicTac:
    """The order of TAO, or of TIO if `timing_aware` is False or the network is not known yet.

    A profile has no graph, only layers, and for a chain of layers TAO yields forward order. `graph` is the model's
    graph, as traced by a PyTorch job (graph_autograd.py of models) or read by prophet_mxnet/graph.py. Its transfers
    match gradients by name or, if some name of the profile is missing, by position: the gradient with the n-th smallest
    id is the n-th transfer.
    """

    def __init__(self, graph: Graph | None = None, timing_aware: bool = True) -> None:
        self.name = "tictac" if timing_aware else "tictac-tio"
        self._graph = graph
        self._timing_aware = timing_aware

    def plan(self, profile: Profile | None, network: Network | None, jitter_s: float = 0.0) -> Plan:
        """Return the plan. Raises UserError if the graph does not fit the profile's model."""
        order: Mapping[int, int] = {}
        credit = ONE_TASK
        if profile is not None:
            order = self.order(profile, network)
            credit = max(gradient.size_bytes for gradient in profile.gradients)
        return Plan(
            push=QueuePlan(order=order, credit=credit),
            # The server answers pulls as keys complete: a credit on them would idle the downlink behind a late key.
            pull=QueuePlan(order=order),
            policy=self.name,
        )

    def order(self, profile: Profile, network: Network | None) -> Mapping[int, int]:
        """Return the number of each gradient id, 0 first. Equal numbers, as in TIO, go in order of arrival."""
        if self._graph is None:
            graph = forward_graph(profile)
            transfer_of = {gradient: _transfer(index) for index, gradient in enumerate(profile.gradient_ids)}
        else:
            graph = self._graph
            transfer_of = _match(graph, profile)
        numbers = tao(graph, graph_time(network)) if self._timing_aware and network is not None else tio(graph)
        # A transfer that nothing waits for has no number and goes last.
        return {gradient: numbers.get(name, len(numbers)) for gradient, name in transfer_of.items()}


def forward_graph(profile: Profile) -> Graph:
    """Return the forward pass of the profile as a chain of layers, each of which waits for its parameter."""
    operations = [
        Operation(_transfer(index), OperationKind.TRANSFER, size_bytes=gradient.size_bytes)
        for index, gradient in enumerate(profile.gradients)
    ]
    for index, gradient in enumerate(profile.gradients):
        before = (f"forward.{index - 1}",) if index else ()
        inputs = (*before, _transfer(index))
        operations.append(Operation(f"forward.{index}", OperationKind.COMPUTE, inputs, gradient.forward_s))
    return Graph(profile.name, tuple(operations))


def _transfer(index: int) -> str:
    return f"transfer.{index}"


def _match(graph: Graph, profile: Profile) -> dict[int, str]:
    """Return the transfer of each gradient id."""
    transfers = {operation.name: operation for operation in graph.transfers}
    gradients = sorted(zip(profile.gradient_ids, profile.gradients, strict=True), key=lambda pair: pair[0])
    where = f"graph {graph.name!r}, profile {profile.name!r}"
    if all(gradient.name in transfers for _, gradient in gradients):
        matched = {index: gradient.name for index, gradient in gradients}
    elif len(transfers) == len(gradients):
        matched = {index: name for (index, _), name in zip(gradients, transfers, strict=True)}
    else:
        raise UserError(
            f"{where}: {len(transfers)} transfers for {len(gradients)} gradients, and their names differ; "
            "give the graph of the job's model, without fusing small gradients"
        )
    for index, gradient in gradients:
        size = transfers[matched[index]].size_bytes
        if size != gradient.size_bytes:
            raise UserError(
                f"{where}: transfer {matched[index]!r} has {size} bytes, gradient {gradient.name!r} "
                f"{gradient.size_bytes}; give the graph of the job's model"
            )
    return matched


# Whole tensors, because ordering takes time quadratic in their number.
_definition = partial(Definition, page="policies/tictac.md", blocks=Blocks.WHOLE)

POLICIES = {
    "tictac": _definition(
        "TicTac's order, by measured times",
        lambda options, partition_bytes: TicTac(),
        of_graph=lambda options, graph: TicTac(graph),
    ),
    "tictac-tio": _definition(
        "TicTac's order, by structure alone",
        lambda options, partition_bytes: TicTac(timing_aware=False),
        of_graph=lambda options, graph: TicTac(graph, timing_aware=False),
    ),
}
