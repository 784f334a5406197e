"""Code compiled by torch.compile: it reads parameters without any call to torch visible to references.py.

Rule of this file: what is compiled, and which tensors its code uses. guards.py deals with the consequences.

A module compiled by torch.compile(module) or module.compile() is called like any other, so its parameters can be
updated before its code runs. The rest is known when torch compiles the code: which tensors each graph takes, and
whether Python runs between two graphs. A compiled function gives no such sign when called.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from prophet_scheduler.frontends.notices import warn_once

if TYPE_CHECKING:
    from prophet_scheduler.frontends.torch.slot import Slot


class _Here(threading.local):
    """State of this thread: the compiled module that runs, if any, and whether code was compiled for it meanwhile."""

    module: nn.Module | None = None
    makes_code = False


MOST_OF_ALL = 0.5
"""Share of all bytes above which a single compiled module leaves little for forward to wait for separately."""

here = _Here()
_kinds: list[type] = []
"""Types returned by torch.compile(module); empty before `watch`."""
_looked_at: weakref.WeakSet[nn.Module] = weakref.WeakSet()
"""Compiled modules whose share of all bytes has been checked."""


def is_compiled(module: nn.Module) -> bool:
    """Return True if a call of the module runs code compiled for it by torch.compile."""
    return module._compiled_call_impl is not None or type(module) in _kinds


def parameters_of(module: nn.Module) -> Iterator[torch.Tensor]:
    """Yield the parameters of a module and its submodules, unnoticed by patches of `parameters()`. Some may repeat."""
    for part in module.modules():
        for param in part._parameters.values():
            if param is not None:
                yield param


def tell_of_whole(module: nn.Module, slots: Callable[[], Sequence[Slot]]) -> None:
    """Warn once if a compiled module has most of what is averaged. `slots` returns those of all parameters."""
    if module in _looked_at:
        return
    params, known = {id(param) for param in parameters_of(module)}, slots()
    together = {slot.rounds for slot in known if id(slot.param) in params}
    if not together:
        return
    _looked_at.add(module)
    sizes = {id(slot.param): slot.param.nbytes for slot in known if slot.rounds in together}
    share = sum(sizes[param] for param in params & sizes.keys()) / sum(sizes.values())
    if share > MOST_OF_ALL:
        warn_once(
            f"torch.compile compiled {share:.0%} of the trained parameters as one piece, whose forward pass waits for "
            "all of their updates; compiled block by block, each block would wait only for its own"
        )


@contextlib.contextmanager
def at_work(module: nn.Module, when_python_between: Callable[[], None]) -> Iterator[None]:
    """Mark a compiled module as running. It must not be called from another compiled module.

    Calls `when_python_between` if code was compiled meanwhile into several graphs with Python between them.
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
    """Return `function`, excluded from torch.compile together with everything that it calls."""
    from torch._dynamo import disable

    return disable(function)


def hide(kind: type, names: Iterable[str]) -> None:
    """Exclude these methods of `kind` from torch.compile."""
    for name in names:
        method = vars(kind)[name]
        if not hasattr(method, "_torchdynamo_disable"):
            setattr(kind, name, unseen(method))


def leave_alone(function: Any) -> None:
    """Keep torch.compile from compiling this function's frame. It still compiles the callees, and the function as a
    part of other code. It also skips the code of torch that the function calls.
    """
    with contextlib.suppress(ImportError):
        from torch._dynamo.eval_frame import skip_code

        skip_code(function.__code__)


def watch(before_code: Callable[[], None], of_graph: Callable[[list[torch.Tensor]], None]) -> bool:
    """Call `before_code` before a Python frame is compiled, and `of_graph` with the tensors that a graph takes. Return
    False if this torch does not reveal what graphs take.
    """
    from torch._dynamo import callback, eval_frame, output_graph  # Slow to import: not before an optimizer is wrapped.

    def starts(*args: Any) -> None:
        trigger = getattr(args[0], "callback_trigger", None) if args else None
        if trigger is None or trigger.name == "DYNAMO":  # Other triggers compile later parts of earlier code.
            here.makes_code = True
            before_code()

    handler: Any = callback.callback_handler
    forget = handler.clear

    @functools.wraps(forget)
    def forget_others() -> None:
        """Forget the handlers, as for torch._dynamo.reset(), but register ours again for later compilations."""
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
    def compile_and_tell(self: Any, graph: Any, *args: Any, **kwargs: Any) -> Any:
        inputs = args[0] if args else self.example_inputs()  # Before torch 2.6 it gets them itself.
        taken = [value for value in inputs if isinstance(value, torch.Tensor)]
        of_graph([*taken, *parameters_of(graph)])
        return compile_graph(self, graph, *args, **kwargs)

    graphs.call_user_compiler = compile_and_tell
    return True


def _graph_breaks() -> int:
    from torch._dynamo.utils import counters

    return sum(counters["graph_break"].values())
