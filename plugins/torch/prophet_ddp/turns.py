"""Turns of torch's own reducer, so that a module keeps Prophet only where Prophet is not slower.

Rule of this file: which of the two a module has in an iteration, and for how long. The agent decides when a turn is
worth its cost; all ranks learn it from the page that control.py sends.

A turn begins when a backward pass returns, once all averages have arrived: torch's reducer finds the state that it
would have left itself. A new reducer communicates, so none is made in a forward pass, which may be one rank's alone. It
averages in the module's group, as without Prophet, and writes `.grad` itself, so steps in a turn are the optimizer's
own. Ranks agree on a turn's length before it begins. Each counts rounds, which are alike on all ranks.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from prophet_ddp.control import FOR_GOOD, TORCH, TORCH_CUT
from prophet_ddp.reducer import HANDED_BACK
from prophet_scheduler.core.cut import Cut
from prophet_scheduler.core.units import format_size
from prophet_scheduler.frontends.ending import say
from prophet_scheduler.frontends.torch import guards as torch_guards
from prophet_scheduler.frontends.torch.awaited import ANY

if TYPE_CHECKING:
    from prophet_ddp.rounds import ModuleRounds
    from prophet_scheduler.frontends.torch.slot import Slot
    from prophet_scheduler.session.tuner import Belief


class Turns:
    """Turns of one module. `give_back(ddp, why, bucket_bytes)` gives the module torch's reducer for good, with buckets
    of that size; 0 for the program's own.
    """

    def __init__(self, ddp: Any, rounds: ModuleRounds, give_back: Callable[[Any, str, int], None]) -> None:
        self._ddp = weakref.ref(ddp)
        self._rounds = rounds
        self._give_back = give_back
        self.believed: Mapping[str, Belief] = {}
        """Belief about each way on the deciding rank, set once torch's reducer is to have the module for good."""
        self._began_s: float | None = None
        self._ended = 0
        self._late: tuple[Any, Any] | None = None
        """Prophet's reducer and logger during a turn of torch's; else None."""
        self._left = 0
        self._cut = TORCH_CUT
        """Cut that stands for the buckets of the newest turn."""
        self._expects = False
        """True if new gradients belong to a round of torch's reducer."""
        self._came = 0
        """Number of gradients generated in the newest round of torch's reducer."""
        self._thread = ANY
        """Thread in which the newest gradient was generated, or ANY."""

    @property
    def possible(self) -> bool:
        """True if this rank knows nothing against a turn. torch.compile would trace whatever a module has in a turn.
        Hooks of the program on nodes that accumulate into `.grad` would run before those of torch's new reducer.
        """
        hooks = (ready.hooks_dict_ref() for _, ready in self._rounds.hooks)
        hooked = any(each is not None and len(each) > 1 for each in hooks)
        return self._rounds.plain and not hooked and not torch_guards.after_compilation()

    @property
    def late_reducer(self) -> Any:
        """Prophet's reducer during a turn of torch's; else None."""
        return self._late[0] if self._late is not None else None

    # Outside of turns.

    def backward_ends(self) -> None:
        """Begin a turn, if one is wanted, when a backward pass that has ended a round returns."""
        if self._rounds.pace.ended == self._ended:
            return
        self._ended = self._rounds.pace.ended
        ddp = self._ddp()
        control = self._rounds.channel.control
        iterations, control.turn = control.turn, 0
        if not iterations or ddp is None or not self._rounds.plain or self._rounds.cut_off:
            return
        if iterations == FOR_GOOD and not self._rounds.lends_gradients():
            self._give_back(ddp, self._why(control.bucket_bytes), control.bucket_bytes)
        else:
            self._begin(ddp, iterations, control.bucket_bytes)

    def _begin(self, ddp: Any, iterations: int, bucket_bytes: int) -> None:
        self._rounds.flush()
        self._cut = Cut.uniform(bucket_bytes) if bucket_bytes else TORCH_CUT
        self._expects, self._came = False, 0
        self._left = iterations
        self._began_s = None
        self._late = ddp.reducer, ddp.logger
        # `.grad` must not become a view of memory that torch's reducer keeps: Prophet writes there later.
        as_view, ddp.gradient_as_bucket_view = ddp.gradient_as_bucket_view, False
        try:
            make_torch_reducer(ddp, self._rounds.as_came, (), self._rounds.layout.arranged, bucket_bytes)
        finally:
            ddp.gradient_as_bucket_view = as_view
        # Prophet's logger stays, since it knows the number of iterations.
        ddp.reducer, ddp.logger = TurnReducer(ddp.reducer, ddp.logger, self._rounds, self), self._late[1]

    def _why(self, bucket_bytes: int) -> str:
        own = [belief.iteration_s for way, belief in self.believed.items() if way != TORCH]
        if not own:
            return "the deciding rank found torch's reducer to be faster"
        torch_s, own_s = self.believed[TORCH].iteration_s, min(own)
        buckets = f" in buckets of {format_size(bucket_bytes)}" if bucket_bytes else ""
        theirs, ours = f"{torch_s * 1e3:.3g} ms with torch's reducer{buckets}", f"{own_s * 1e3:.3g} ms under Prophet"
        text = f"an iteration takes {theirs} and {ours}"
        say(f"{self._rounds.label} has torch's reducer from now on: {text}")
        return text

    # During a turn.

    def torch_forward_begins(self) -> bool:
        """Begin a synchronised forward pass. Return True if torch's reducer has this one as well."""
        if not self._came or self._expects:  # There was no round, or it has not ended.
            return True
        self._came = 0
        self._left -= 1
        now, before_s = time.monotonic(), self._began_s
        self._began_s = now
        ddp = self._ddp()
        assert ddp is not None  # It is in its forward pass.
        if not self._left:
            ddp.reducer._check_reducer_finalized()  # Raises torch's own error if a round never ended.
            self._end(ddp)
        if before_s is not None:
            self._rounds.iterated(TORCH, now - before_s, self._cut)
        if self._left:
            return True
        ddp.reducer.prepare_for_forward()
        return False

    def torch_forward_ends(self) -> None:
        """End a forward pass: gradients generated from now on belong to a round."""
        self._expects, self._came = True, 0

    def gradient_comes(self, slot: Slot) -> bool:
        """Count a gradient. Return True if it belongs to a round, which ends with the last one of the module."""
        expected = self._expects
        self._came += expected
        self._expects = expected and self._came < len(self._rounds.slots)
        self._thread = threading.get_ident() if slot.param.is_cpu else ANY
        return expected

    @property
    def unfinished_here(self) -> bool:
        """True while a round of torch's reducer lacks gradients, and has had some by a backward pass of this thread."""
        return self._expects and self._came > 0 and self._thread in (ANY, threading.get_ident())

    def _end(self, ddp: Any) -> None:
        assert self._late is not None
        ddp.reducer.torch_reducer._remove_autograd_hooks()
        ddp.reducer, ddp.logger = self._late
        self._late = None
        self._rounds.resume()


class TurnReducer:
    """Reducer of DistributedDataParallel during a turn: calls torch's reducer, and counts its rounds."""

    def __init__(self, torch_reducer: Any, torch_logger: Any, rounds: ModuleRounds, turns: Turns) -> None:
        self.rounds = rounds
        self._torch_logger = torch_logger  # Kept alive here: the reducer itself does not.
        self.torch_reducer = torch_reducer
        self._turns = turns

    def prepare_for_forward(self) -> None:
        """Call torch's method, unless the turn is over."""
        if self._turns.torch_forward_begins():
            self.torch_reducer.prepare_for_forward()

    def prepare_for_backward(self, outputs: Sequence[Any]) -> None:
        """Call torch's method, and expect gradients."""
        self._turns.torch_forward_ends()
        self.torch_reducer.prepare_for_backward(outputs)

    def __getattr__(self, name: str) -> Any:
        # Prophet's reducer hands the module back for good, beyond the turn.
        return getattr(self._turns.late_reducer if name in HANDED_BACK else self.torch_reducer, name)


@contextlib.contextmanager
def _buckets_of(ddp: Any, bucket_bytes: int) -> Iterator[None]:
    """Let the module make buckets of this size within the context; 0 for the program's own."""
    own = vars(ddp)
    # Which of them exist depends on the release of torch.
    names = "bucket_bytes_cap", "bucket_bytes_cap_default", "_bucket_config"
    before = {name: own[name] for name in names if name in own}
    if bucket_bytes:
        ddp.bucket_bytes_cap, ddp.bucket_bytes_cap_default = bucket_bytes, False
        if config := before.get("_bucket_config"):
            limits = {"per_bucket_bytes_caps": (), "first_bucket_bytes_cap": bucket_bytes}
            ddp._bucket_config = dataclasses.replace(config, bucket_bytes_cap=bucket_bytes, **limits)
    try:
        yield
    finally:
        own.update(before)


def make_torch_reducer(
    ddp: Any, slots: Sequence[Slot], sparse: Sequence[torch.Tensor] = (), rebuilt: bool = False, bucket_bytes: int = 0
) -> None:
    """Give the module a reducer and a logger as its constructor made them, for the parameters that it had then, with
    the program's registered hook. `sparse` parameters have no slot. `rebuilt`: buckets are for gradients generated in
    the order of these slots. Buckets have `bucket_bytes`; 0 for their former size.
    """
    names = {place: slot.name for place, slot in enumerate(slots)}
    params = [*(slot.param for slot in slots), *sparse]
    former = [(slot.param, slot.param.grad, slot.seen_last()) for slot in slots] if ddp.gradient_as_bucket_view else []
    kept = [(param, grad, last) for param, grad, last in former if last is not None and last.dtype == param.dtype]
    for param, _, last in kept:
        param.grad = last
    # torch's reducer needs each parameter's accumulation node, which one that was frozen since does not have.
    frozen = [param for param in params if not param.requires_grad]
    for param in frozen:
        param.requires_grad_(True)
    try:
        with _buckets_of(ddp, bucket_bytes):
            ddp._ddp_init_helper(params, [False] * len(slots) + [True] * len(sparse), names, ddp.static_graph)
    finally:
        for param in frozen:
            param.requires_grad_(False)
    if ddp.static_graph:
        ddp._static_graph_delay_allreduce_enqueued = False  # The new reducer counts in its own first iteration.
        ddp.reducer._set_static_graph()
        ddp.logger._set_static_graph()
    if rebuilt:
        ddp.reducer._push_all_rebuilt_params()
        ddp.reducer._rebuild_buckets()
    for param, grad, last in kept:
        # torch has put it into its bucket. What the program kept of earlier gradients follows, as with one reducer.
        placed = param.grad
        assert placed is not None
        last.data, param.grad = placed, grad
    for hook, state in ddp._comm_hooks:
        register: Any = dist._register_comm_hook  # type: ignore[attr-defined]
        register(ddp.reducer, state, hook)
        ddp.logger._set_comm_hook_name(hook.__qualname__)
