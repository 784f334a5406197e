"""A graph from a PyTorch model.

Rule of this file: the forward pass of a `torch.nn.Module` as steps and parameters; the iteration made of it is
graph_patterns.py's. torch is optional: it is imported where it is needed.
"""

from __future__ import annotations

import copy
import itertools
import operator
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from prophet.core.errors import UserError
from prophet.core.graph import Graph
from prophet.models.graph_patterns import ForwardStep, Pattern, worker_graph

if TYPE_CHECKING:
    import torch
    from torch import fx, nn


def graph_of_module(
    module: nn.Module,
    inputs: Sequence[Any],
    *,
    pattern: Pattern = Pattern.RECEIVE,
    flops_per_s: float | None = None,
    times_s: Mapping[str, float] | None = None,
) -> Graph:
    """The graph of `module` called with `inputs`, which give the shapes; nothing is computed and no weight is touched.

    Computing is called `forward.NODE` (and `backward.NODE`), NODE being torch.fx's name: the path of a module with
    underscores. A transfer has the name of its parameter as `named_parameters` gives it, and a weight that is used in
    several places is one transfer. Frozen parameters and buffers do not travel. The work of matrix products and
    convolutions is counted by torch's FlopCounterMode; any other node is one operation for each number of its result,
    which is far too little on memory-bound devices: pass `times_s`, by operation, where that matters.

    Raises UserError where torch is missing, where torch.fx cannot trace the model (control flow that depends on
    data), where `inputs` do not fit it, and as `worker_graph` does.
    """
    try:
        from torch import Tensor, fx, nn
        from torch._subclasses.fake_tensor import FakeTensorMode
    except ImportError:
        raise UserError("a graph of a PyTorch model needs torch; install it") from None
    title = type(module).__name__
    names = {id(parameter): key for key, parameter in module.named_parameters() if parameter.requires_grad}
    sizes = {key: p.numel() * p.element_size() for key, p in module.named_parameters() if p.requires_grad}
    # A tensor that is no parameter and no buffer stays as it is, and is replaced when it is read.
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    stand_ins: dict[int, Any] = {}  # deepcopy takes these in place of weights, which may be larger than memory
    for tensor in itertools.chain(module.parameters(), module.buffers()):
        stand_in: Any = fake.from_tensor(tensor.detach())
        if isinstance(tensor, nn.Parameter):
            stand_in = nn.Parameter(stand_in, requires_grad=tensor.requires_grad)
        stand_ins[id(tensor)] = stand_in
    names = {id(stand_ins[tensor]): key for tensor, key in names.items()}
    examples = [fake.from_tensor(value) if isinstance(value, Tensor) else value for value in inputs]
    light = copy.deepcopy(module, dict(stand_ins))
    with fake:
        try:
            traced = fx.symbolic_trace(light)
        except Exception as error:  # fx raises whatever the model's own code raises on a proxy
            raise UserError(f"model {title!r}: torch.fx cannot trace it ({_line(error)})") from error
        try:
            work = _work(traced, examples)
        except Exception as error:
            raise UserError(f"model {title!r}: does not run on these inputs ({_line(error)})") from error
    steps = _steps(traced, names, work)
    return worker_graph(title, steps, sizes, pattern=pattern, flops_per_s=flops_per_s, times_s=times_s)


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else 'no message'}"


def _work(traced: fx.GraphModule, examples: Sequence[Any]) -> dict[str, tuple[float, float]]:
    """By node: floating-point operations of its products, and of the rest."""
    import torch
    from torch import fx
    from torch.utils.flop_counter import FlopCounterMode

    work: dict[str, tuple[float, float]] = {}

    class Counting(fx.Interpreter):  # type: ignore[misc, unused-ignore]
        def run_node(self, n: fx.Node) -> Any:
            with FlopCounterMode(display=False) as counter:
                result = super().run_node(n)
            products = float(counter.get_total_flops())
            work[n.name] = (products, 0.0 if products or _moves_nothing(n) else float(_numbers(result)))
            return result

    with torch.no_grad():
        Counting(traced).run(*examples)
    return work


def _moves_nothing(node: fx.Node) -> bool:
    """Picking an element of a tuple, or an attribute."""
    return node.op == "call_function" and node.target in (operator.getitem, getattr)


def _numbers(result: Any) -> int:
    """How many numbers a result has."""
    if hasattr(result, "numel"):
        return int(result.numel())
    if isinstance(result, list | tuple):
        return sum(_numbers(element) for element in result)
    return 0


def _steps(
    traced: fx.GraphModule, names: Mapping[int, str], work: Mapping[str, tuple[float, float]]
) -> list[ForwardStep]:
    """Each node that computes; what is read or passed in is an input of the nodes that use it."""
    steps = []
    computing: set[str] = set()
    parameter_of: dict[str, str] = {}  # get_attr node -> parameter
    for node in traced.graph.nodes:
        if node.op == "get_attr":
            key = names.get(id(_attribute(traced, str(node.target))))
            if key is not None:
                parameter_of[node.name] = key
        elif node.op.startswith("call_"):
            inputs = [source.name for source in node.all_input_nodes]
            parameters = [parameter_of[source] for source in inputs if source in parameter_of]
            if node.op == "call_module":
                for parameter in traced.get_submodule(str(node.target)).parameters():
                    if id(parameter) in names:
                        parameters.append(names[id(parameter)])
            products, others = work[node.name]
            steps.append(
                ForwardStep(
                    node.name,
                    tuple(source for source in inputs if source in computing),
                    tuple(dict.fromkeys(parameters)),
                    products,
                    others,
                )
            )
            computing.add(node.name)
    return steps


def _attribute(module: torch.nn.Module, path: str) -> Any:
    value: Any = module
    for part in path.split("."):
        value = getattr(value, part)
    return value
