"""Code that torch.compile made: it reads parameters without a call of torch that references.py could see.

Rule of this file: what is compiled, and what its code uses; what follows from it is guards.py's.

A module that is compiled, by torch.compile(module) or module.compile(), is called like any other, so its parameters
can be brought up to date before its code runs. What else its code may use, torch tells when it makes that code: each
graph with the tensors that it takes, and whether Python runs between two graphs. A function that is compiled is called
by nobody that could be asked.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import nn


class _Here(threading.local):
    """This thread's part: the compiled module that is at work, and whether code was made for it meanwhile."""

    module: nn.Module | None = None
    makes_code = False


here = _Here()
_kinds: list[type] = []
"""What torch.compile(module) returns; empty before `watch`."""


def is_compiled(module: nn.Module) -> bool:
    """Whether a call of it runs code of its own that torch.compile made."""
    return module._compiled_call_impl is not None or type(module) in _kinds


def parameters_of(module: nn.Module) -> Iterator[torch.Tensor]:
    """Those of the module and of all modules in it, unseen by who watches `parameters()`. Some may come twice."""
    for part in module.modules():
        for param in part._parameters.values():
            if param is not None:
                yield param


def inside() -> bool:
    """Whether a compiled module is at work in this thread."""
    return here.module is not None


def used_here() -> Iterator[torch.Tensor]:
    """The parameters of the compiled module that is at work in this thread."""
    if here.module is not None:
        yield from parameters_of(here.module)


@contextlib.contextmanager
def at_work(module: nn.Module, when_python_between: Callable[[], None]) -> Iterator[None]:
    """A compiled module is called, and not from another one. `when_python_between` is called where its code was made
    meanwhile, and is of several graphs with Python between them.
    """
    breaks = _graph_breaks()
    here.module, here.makes_code = module, False
    try:
        yield
    finally:
        here.module = None
        if here.makes_code and _graph_breaks() > breaks:
            when_python_between()


def unseen(function: Any) -> Any:
    """`function`, of which and of what it calls torch.compile makes no code."""
    from torch._dynamo import disable

    return disable(function)


def hide(kind: type, names: Iterable[str]) -> None:
    """From now on these methods of `kind` are unseen."""
    for name in names:
        method = vars(kind)[name]
        if not hasattr(method, "_torchdynamo_disable"):
            setattr(kind, name, unseen(method))


def leave_alone(function: Any) -> None:
    """From now on torch.compile makes no code of this function where the interpreter comes to it; what it calls, and
    where it is a part of other code, are as they were. Code of torch that it stands before is left alone as well.
    """
    with contextlib.suppress(ImportError):
        from torch._dynamo.eval_frame import skip_code

        skip_code(function.__code__)


def watch(before_code: Callable[[], None], of_graph: Callable[[list[torch.Tensor]], None]) -> bool:
    """From now on `before_code` is called before code is made of a frame of Python, and `of_graph` with the tensors
    that a graph takes. Returns False where this torch does not tell what graphs take.
    """
    from torch._dynamo import callback, eval_frame, output_graph  # Slow to import: not before an optimizer is wrapped.

    def starts(*args: Any) -> None:
        trigger = getattr(args[0], "callback_trigger", None) if args else None
        if trigger is None or trigger.name == "DYNAMO":  # Others are later parts of what was made before.
            here.makes_code = True
            before_code()

    handler: Any = callback.callback_handler
    forget = handler.clear

    @functools.wraps(forget)
    def forget_others() -> None:
        """torch._dynamo.reset() forgets what was registered, but what comes after it is compiled as well."""
        forget()
        callback.on_compile_start(starts)

    handler.clear = forget_others
    callback.on_compile_start(starts)

    optimized: Any = getattr(eval_frame, "OptimizedModule", None)
    graphs: Any = getattr(output_graph, "OutputGraph", None)
    compile_graph = getattr(graphs, "call_user_compiler", None)
    if optimized is None or compile_graph is None:
        return False
    _kinds.append(optimized)

    @functools.wraps(compile_graph)
    def compile_and_tell(self: Any, graph: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        taken = [value for value in inputs if isinstance(value, torch.Tensor)]
        of_graph([*taken, *parameters_of(graph)])
        return compile_graph(self, graph, inputs, *args, **kwargs)

    graphs.call_user_compiler = compile_and_tell
    return True


def _graph_breaks() -> int:
    from torch._dynamo.utils import counters

    return sum(counters["graph_break"].values())
