"""The decision whether Prophet replaces the reducer of a DistributedDataParallel or torch's own stays.

Rule of this file: that decision, alike on all ranks. assembly.py puts together the parts that a module gets instead.
Only public constructors and the two attributes `reducer` and `logger` are touched. DistributedDataParallel itself does
everything else: the first broadcast, buffers, no_sync(), forward's arguments and results.

Ranks announce their plans through the default group's store before anything depends on another rank. If one rank cannot
go along, all keep torch's reducer, with one warning.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import os
import weakref
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from prophet_ddp import ends, meeting
from prophet_ddp.agent import WatchingAgent, agents, records
from prophet_ddp.arena import SparseGradients
from prophet_ddp.assembly import CPU, assemble, deciding_agent, profile_in
from prophet_ddp.ddp_logger import DdpLogger
from prophet_ddp.environment import settings_for
from prophet_ddp.meeting import LostRank, met
from prophet_ddp.reducer import LateReducer, wait_before_callbacks
from prophet_ddp.rounds import ModuleRounds
from prophet_ddp.turns import Turns, make_torch_reducer
from prophet_ddp.wide_gloo import backend_on_processors
from prophet_scheduler import __version__
from prophet_scheduler.core.settings import DEFAULT_PARTITION_BYTES, Settings
from prophet_scheduler.forks import LivingSet
from prophet_scheduler.frontends.ending import WRONG, at_end, end_process, raise_if_handlers
from prophet_scheduler.frontends.importlib_bootstrap import passed_over
from prophet_scheduler.frontends.notices import speaks, warn_of_unknown_variables, warn_once
from prophet_scheduler.frontends.records import require_records
from prophet_scheduler.frontends.torch import steps
from prophet_scheduler.frontends.torch.between import call_before
from prophet_scheduler.frontends.torch.optimizer import too_old
from prophet_scheduler.frontends.turning import tend_heap
from prophet_scheduler.policies import policy_from_environ

RPC = "an RPC agent runs, and distributed autograd keeps its gradients elsewhere than in .grad"
KEEPS = "torch's reducer"
"""Prefix of the announcement of a rank that keeps torch's reducer."""

_taken: LivingSet[Any] = LivingSet()
"""Modules taken over. One with operations in flight stays alive until they have ended, even if it was dropped."""
_numbers = itertools.count(1)


@functools.cache
def settings() -> Settings:
    """Return this process's settings; a wrong one ends the process."""

    def check_policy(told: Settings) -> None:
        policy_from_environ(told.policy, os.environ, told.partition_bytes or DEFAULT_PARTITION_BYTES)

    return settings_for("DistributedDataParallel", check_policy, require_records, profile_in)


def take_over(ddp: Any, told: Settings, synced: bool = True) -> None:
    """Replace the module's reducer, if all ranks of its group can. `synced`: the module's constructor has waited for
    all of them, as torch's does by default.
    """
    group: dist.ProcessGroup = ddp.process_group
    if group.size() == 1:
        return
    records.begin(told)  # Written last, when nothing is in flight.
    speaks(group.rank() == 0)
    number, kind = next(_numbers), type(ddp.module).__name__
    label = f"{kind} (module {number})" if number > 1 else kind
    try:
        why = _replace_everywhere(ddp, told, group, label, synced)
    except LostRank as error:
        why = str(error)
    if why:
        warn_once(f"{label} keeps DistributedDataParallel as it is: {why}")
        records.stepped_aside(why)
        _give_back(ddp)


def _replace_everywhere(ddp: Any, told: Settings, group: dist.ProcessGroup, label: str, synced: bool) -> str:
    """Replace the reducer, if all ranks can. Return why not, the same on all ranks; empty if done. Raises LostRank."""
    try:
        if dist.get_rank() == 0:
            warn_of_unknown_variables(os.environ)
        reason, (named, sparse) = why_not(ddp, group, told), _parameters(ddp)
    except Exception as error:
        raise_if_handlers(error)
        reason, named, sparse = _failure(error), [], []
    rows = "\n".join(f"{name} {tuple(param.shape)} {param.dtype}" for name, param in named)
    digest = hashlib.sha256(rows.encode()).hexdigest()[:8]
    blocks = f"{told.partition_bytes or 'adaptive'}, fusion {'on' if told.fusion else 'off'}"
    terms = f"Prophet {__version__}, policy {told.policy}, {blocks}, layout {digest}"
    own = terms if reason is None else f"{KEEPS}, since {reason}"
    limit_s = meeting.timeout_of(group, next(ddp.module.parameters()).device).total_seconds()
    # All ranks were here a moment ago, so a silent one does not run Prophet and will never answer.
    if synced:
        said, store = meeting.agree_or_end(group, own, meeting.AGREE_LIMIT_S, "has not announced its settings")
    else:
        said, store = meeting.agree_or_end(group, own, limit_s, "has not made this module, or not under Prophet,")
    wanted = {text for text in said if not text.startswith(KEEPS)}
    if len(wanted) > 1:
        rank, text = next((rank, text) for rank, text in enumerate(said) if text in wanted - {own})
        end_process(f"the ranks of this job differ, and must be alike: rank {rank} has {text}; this one {own}", WRONG)
    for rank, text in enumerate(said):
        if text not in wanted:
            return f"rank {rank} has {text}"
    failed = ""
    try:
        _install()
        _replace(ddp, told, group, named, sparse, store)
        ddp.reducer.rounds.label = label
    except Exception as error:
        raise_if_handlers(error)
        failed = _failure(error)
    # No rank continues alone: the others would wait for its collectives.
    said, _ = meeting.agree_or_end(
        group, failed, meeting.AGREE_LIMIT_S if failed else limit_s, "has not reported whether it is connected"
    )
    for rank, text in enumerate(said):
        if text:
            return f"rank {rank} says that {text}"
    size_bytes = sum(param.numel() * param.element_size() for _, param in named)
    records.taken_over(ddp.reducer.rounds.record, size_bytes, str(dist.get_backend(group)))
    return ""


def _failure(error: Exception) -> str:
    return f"Prophet failed there: {type(error).__name__}: {error}"


def why_not(ddp: Any, group: dist.ProcessGroup, told: Settings) -> str | None:
    """Return why torch's reducer must stay; None if it need not."""
    if old := too_old():
        return old
    devices = {param.device for param in ddp.module.parameters() if param.requires_grad}
    if devices != {CPU}:
        from prophet_ddp import nccl  # A job on processors needs none of it.

        whole: Any = dist.distributed_c10d._get_default_group()
        bound = getattr(whole, "bound_device_id", None) is not None
        reason = nccl.why_not(devices, dist.get_backend(group), group is whole, bound, told, os.environ)
        if reason is not None:
            return reason
    elif (backend := backend_on_processors(group)) != "gloo":
        return f"its process group's backend is {backend}, not gloo"
    if getattr(ddp, "mixed_precision", None) is not None:
        return "mixed_precision is set"
    if any(hasattr(param, "_st_info") for param in ddp.module.parameters()):
        return "its parameters are sharded over a device mesh of several dimensions"
    if getattr(ddp, "_delay_all_reduce_all_params", False) or getattr(ddp, "_delay_all_reduce_params", None):
        return "delay_all_reduce_named_params is set"
    if getattr(ddp, "_use_python_reducer", False):
        return "torch.compile's python_reducer is chosen"
    parameters, sparse = ddp._build_params_for_reducer()
    if any(sparse) and (all(sparse) or devices != {CPU} or ddp.find_unused_parameters or ddp.static_graph):
        return "its gradients are sparse, and there are no dense ones, or some may be unused, or they are on a GPU"
    if not all(param.is_floating_point() for param in parameters):
        return "a parameter is not of a real floating-point type"
    if any(hasattr(param, "_in_backward_optimizers") for param in parameters):
        return "an optimizer runs within backward"
    rpc: Any = dist.rpc
    if rpc.is_available() and rpc.api._is_current_rpc_agent_set():
        return RPC
    changed = _changed_methods(type(ddp))
    if changed:
        return f"{type(ddp).__name__} has methods of its own: {', '.join(changed)}"
    return None


def _changed_methods(kind: type) -> list[str]:
    """Return the methods that a subclass of DistributedDataParallel overrides, except train() and special ones."""
    ddp_class = torch.nn.parallel.DistributedDataParallel
    own = {name for each in kind.__mro__[: kind.__mro__.index(ddp_class)] for name in vars(each)}
    theirs = {name for name, value in vars(ddp_class).items() if callable(value) and not name.startswith("__")}
    return sorted(own & theirs - {"train"})


def _parameters(ddp: Any) -> tuple[list[tuple[str, torch.Tensor]], list[torch.Tensor]]:
    """Return the averaged parameters in the order of registration: those with dense gradients, each with its first
    name, and those with sparse ones.
    """
    names: dict[int, str] = {}
    for name, param in ddp.module.named_parameters():
        names.setdefault(id(param), name)
    rows = list(zip(*ddp._build_params_for_reducer(), strict=True))
    dense = [(names[id(param)], param) for param, is_sparse in rows if not is_sparse]
    return dense, [param for param, is_sparse in rows if is_sparse]


def _replace(
    ddp: Any,
    told: Settings,
    group: dist.ProcessGroup,
    named: Sequence[tuple[str, torch.Tensor]],
    sparse: Sequence[torch.Tensor],
    store: Any,
) -> None:
    decides = group.rank() == 0
    observes = records.observes_next()
    heard = decides or observes
    rounds = assemble(ddp, told, group, named, number=met(), store=store, heard=heard)
    ddp.logger = DdpLogger(rounds, ddp.logger, ddp)
    ddp.reducer = LateReducer(rounds, ddp.logger, functools.partial(_hand_back, weakref.ref(ddp)))
    _taken.add(ddp)
    steps.install()
    tend_heap()
    weakref.finalize(ddp, rounds.dropped).atexit = False
    rounds.record.decides = decides
    rounds.record.drain = rounds.log.drain if heard else None
    if heard:
        agent = deciding_agent(rounds, told) if decides else WatchingAgent(rounds)
        agents.add(agent)
    if sparse:
        rounds.sparse = SparseGradients(sparse, group)
    elif rounds.terms.may_leave:
        rounds.turns = Turns(ddp, rounds, _give_back_faster)
    records.follow(rounds.record, group.size())


def _give_back(ddp: Any, bucket_bytes: int = 0) -> None:
    """Give the module torch's reducer again. All ranks do so, since all meet the cause. Its buckets have
    `bucket_bytes`; 0 for the program's own.
    """
    if ddp not in _taken:
        return
    rounds = ddp.reducer.rounds
    slots, rebuilt = rounds.as_came, rounds.layout.arranged
    rounds.remove()
    _taken.discard(ddp)
    del ddp.reducer, ddp.logger
    sparse = rounds.sparse.params if rounds.sparse is not None else ()
    make_torch_reducer(ddp, slots, sparse, rebuilt and not sparse, bucket_bytes)


def _hand_back(module: weakref.ref[Any], why: str) -> Any:
    """Give the module torch's reducer and return it, for a program that needs something only that has."""
    ddp: Any = module()
    ddp.reducer.rounds.check_finished()
    _plain(ddp, why)
    return ddp.reducer


def _give_back_faster(ddp: Any, why: str, bucket_bytes: int) -> None:
    records.given_back(why, ddp.reducer.rounds.record)
    _give_back(ddp, bucket_bytes)


@functools.cache
def _install() -> None:
    """Install the other patches, once per process."""
    ddp_class: Any = torch.nn.parallel.DistributedDataParallel
    for name, why in (
        ("join_hook", "join() is used"),  # by torch's Join, too
        ("_register_buffer_comm_hook", "a hook is registered for its buffers"),
        ("_register_builtin_comm_hook", "a built-in hook is registered"),
    ):
        call_before(ddp_class, name, lambda ddp, *_, why=why, **__: _plain(ddp, why))
    _watch_comm_hooks(ddp_class)
    call_before(dist.rpc, "_init_rpc_backend", lambda *_, **__: _all_plain(RPC))
    # No thread of ours may query a device while a CUDA graph is captured: that would end the capture.
    call_before(torch.cuda.CUDAGraph, "capture_begin", lambda *_, **__: _finish())
    for name, what in (("destroy_process_group", _finish), ("_abort_process_group", ends.give_up)):
        call_before(dist.distributed_c10d, name, lambda *_, what=what, **__: what())
        if hasattr(dist, name):
            setattr(dist, name, getattr(dist.distributed_c10d, name))
    wait_before_callbacks(lambda: [ddp.reducer.rounds for ddp in _taken])
    at_end(ends.process_ends)


def _finish() -> None:
    ends.finish(ddp.reducer.rounds for ddp in _taken)


def _all_plain(why: str) -> None:
    for ddp in _taken:
        _plain(ddp, why)


def _plain(ddp: Any, why: str) -> None:
    if ddp in _taken:
        warn_once(f"{ddp.reducer.rounds.label} goes on with DistributedDataParallel as it is: {why}")
        records.stepped_aside(why, ddp.reducer.rounds.record)
        _give_back(ddp)


def _watch_comm_hooks(ddp_class: Any) -> None:
    original = ddp_class.register_comm_hook

    @passed_over
    @functools.wraps(original)
    def wrapper(self: Any, state: object, hook: Any) -> Any:
        if self in _taken:
            self._check_comm_hook(hook)  # torch does this first, too: the hook may be anything.
            try:
                from prophet_ddp import comm_hooks  # Few jobs need it.
            except Exception as error:  # as with another torch
                raise_if_handlers(error)
                _plain(self, f"a hook is registered for its gradients. {_failure(error)}")
                return original(self, state, hook)
            rounds: ModuleRounds = self.reducer.rounds
            known = comm_hooks.known(hook)
            begun = rounds.layout.arena is not None or rounds.layout.hook is not None
            why = " after the first ones have left" if known is not None and begun else ""
            if known is not None and not (begun or rounds.sparse) and comm_hooks.group_of(state) is self.process_group:
                refusal = rounds.average_by(known, comm_hooks.Buckets(hook, state, self.logger.buckets))
                why = f", and {refusal}"
                if not refusal:
                    self.logger._set_comm_hook_name(hook.__qualname__)
                    self._comm_hooks.append((hook, state))
                    return None
            _plain(self, f"{getattr(hook, '__qualname__', hook)} is registered for its gradients{why}")
        return original(self, state, hook)

    ddp_class.register_comm_hook = wrapper
