"""Guards on every way in which a program can reach a parameter: each finishes the pending update first.

Rule of this file: interception of torch, and nothing about transfers or optimizers. A parameter with a pending update
is brought up to date

- when its module is called, when it is read as an attribute of a module, when `named_parameters()` or `parameters()`
  returns it;
- when any function of torch gets it or a tensor that shares its memory (references.py, threads.py), which covers a list
  of parameters that the program kept;
- when it is copied, pickled, or sent to another process.

All parameters are brought up to date before `state_dict()`, `load_state_dict()` and moves like `model.to()`, before the
process forks, before TorchScript code or a CUDA graph runs, and before a transform of torch.func, in which nothing may
be written.

A call of a compiled module waits for all of its parameters (compiled.py). step() waits, as in stock BytePS, if
something holds the memory of a parameter or gradient outside torch (aliases.py), and as soon as compiled code could use
a parameter of another module. One way cannot be guarded: a reference to the tensor itself in a C++ thread or an
extension. If gradients reveal such a use, step() waits from then on. The patches do nothing while being traced, so they
cause no graph breaks.
"""

from __future__ import annotations

import functools
import os
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.autograd.graph import GradientEdge
from torch.utils._device import DeviceContext

from prophet_scheduler.forks import LivingSet, hold_over_fork
from prophet_scheduler.frontends import threads
from prophet_scheduler.frontends.importlib_bootstrap import passed_over
from prophet_scheduler.frontends.notices import warn_once
from prophet_scheduler.frontends.torch import aliases as torch_aliases
from prophet_scheduler.frontends.torch import compiled, program_state, references
from prophet_scheduler.frontends.torch.between import (
    call_before,
    patch_parameters,
    patch_zero_grad,
    watch_unseen,
    wrap_imported,
)
from prophet_scheduler.frontends.torch.life import FORGET, UPDATE, Sight, move
from prophet_scheduler.frontends.torch.memory import parts_of, storage_key
from prophet_scheduler.frontends.torch.pending import Pending, keys_of
from prophet_scheduler.frontends.torch.slot import Slot

if TYPE_CHECKING:
    from prophet_scheduler.frontends.torch.awaited import AwaitedRounds
    from prophet_scheduler.frontends.torch.updates import Updates


class Watched:
    """A parameter's slots, one for each owner that averages its gradient, and the record of its memory."""

    def __init__(self) -> None:
        self.slots: list[Slot] = []
        self.memory = torch_aliases.Memory()


_watched: weakref.WeakValueDictionary[int, Watched] = weakref.WeakValueDictionary()
"""Watched parameters by id. A slot keeps its parameter alive, so no id is reused."""
pending = Pending()
"""Updates that are pending, and averages that are awaited."""
_owners: LivingSet[Any] = LivingSet()
_kept_at = 0, 0
"""Thread of the last step that left updates pending, and the number of the next autograd node then."""
_learning: dict[int, Any] = {}
"""Weak references, by id, to owners for which it is still unknown how the program reaches their parameters."""
_some_dropped = False
"""True if the program has dropped parameters of modules that it had dropped before."""
_graphs_are_told = False
"""True if this torch reveals what its compiled code uses."""
_BY_MODES = nn.MultiheadAttention, nn.TransformerEncoder, nn.TransformerEncoderLayer
"""Modules that compute other bits in evaluation while a function mode is set."""


def watch(owner: Any, slots: list[Slot]) -> None:
    """Bring these parameters up to date from now on, through `finish(slots)` of their slots' owners and `flush()`.
    `owner` is an AwaitedRounds, or has its methods `flush`, `keep_barrier` and `before_compilation`.

    Until `note_uses(owner, False)`, every use is noted in `Slot.sight`, not only that of a parameter with a pending
    update.
    """
    install()
    _owners.add(owner)
    for slot in slots:
        # Only slots hold it, so it goes with the last of them.
        watched = _watched.get(id(slot.param)) or Watched()
        _watched[id(slot.param)] = watched
        watched.slots.append(slot)
        slot.watched = watched
        watched.memory.note(slot.param)
    note_uses(owner, True)
    if after_compilation():
        owner.keep_barrier()


def unwatch(owner: Any, slots: Iterable[Slot]) -> None:
    """Stop watching `slots`, which are all of `owner`'s; nothing of it may be pending or awaited."""
    note_uses(owner, False)
    for slot in slots:
        if slot in slot.watched.slots:
            slot.watched.slots.remove(slot)


def may_go(slots: Iterable[Slot]) -> None:
    """Let the program drop these parameters from now on. A pending update is still made while anything holds the
    parameter's memory.
    """
    with references.at_work(), references.unhandled(), program_state.outermost():
        for slot in slots:
            param = slot.param
            memory = param.detach() if slot.life.to_come else None
            slot.let_go(weakref.ref(param, functools.partial(_dropped, id(param))), memory)


def _dropped(identity: int, _reference: Any) -> None:
    global _some_dropped
    _watched.pop(identity, None)  # Another parameter may get the id.
    _some_dropped = True


def forget_dropped() -> None:
    """Forget the updates of parameters that can no longer be accessed. Their gradients are still sent: other ranks need
    them.
    """
    global _some_dropped
    if not _some_dropped:
        return
    _some_dropped = False
    dropped = {slot for slot in pending.slots() if slot.dropped and slot.life.to_come}
    with references.at_work(), references.unhandled():
        ours = Counter(key for key, _ in keys_of(dropped))
        lost: dict[Any, list[Slot]] = {}
        for slot in dropped:
            parts = parts_of(slot.param)
            held = any(torch_aliases.is_held(part, ours[storage_key(part)]) for part in parts)
            held |= slot.sent() is not None or (slot.life.pending and slot.owner.state_is_held(slot))
            if held or not slot.rounds.may_forget(slot):
                _some_dropped = True  # It may become free later.
            else:
                lost.setdefault(slot.owner if slot.life.pending else slot.rounds, []).append(slot)
    for owner, slots in lost.items():
        owner.forget(slots)


def slots_of(param: torch.Tensor) -> list[Slot]:
    """Return the parameter's slots, one for each owner that averages its gradient."""
    watched = _watched.get(id(param))
    return watched.slots if watched is not None else []


def note_uses(owner: Any, wanted: bool) -> None:
    """Set whether every use of the owner's parameters is noted (`Slot.sight`) from now on, as after `watch`."""
    if wanted == (id(owner) in _learning):
        return
    if wanted:
        _learning[id(owner)] = weakref.ref(owner, functools.partial(_learning.pop, id(owner)))
        _watch_references()
    else:
        del _learning[id(owner)]
        leave_references()


def keep(owner: Updates, slots: Iterable[Slot]) -> set[Slot]:
    """Note that updates of `slots` are pending, until `release`. Return those that must not be late
    (Pending.add_updates).
    """
    global _kept_at
    forget_dropped()
    _kept_at = threading.get_ident(), torch._C._autograd._get_sequence_nr()
    exposed = pending.add_updates(owner, slots)
    _watch_references()
    return exposed


def keep_gradients(rounds: AwaitedRounds, slots: Iterable[Slot]) -> tuple[list[Slot], list[Slot]]:
    """Note that the `.grad` of `slots` awaits averages: a use waits for them, through `rounds.settle`. Returns what
    Pending.add_gradients does.
    """
    shared_and_unseen = pending.add_gradients(rounds, slots)
    _watch_references()
    return shared_and_unseen


def keep_within_backward(rounds: AwaitedRounds, slots: Iterable[Slot]) -> None:
    """Add gradients to those of `keep_gradients`, for accesses by the program within backward."""
    pending.add_within_backward(rounds, slots)
    _watch_references()


def keep_copies(owner: Any, slots: Iterable[Slot]) -> None:
    """Until `release_copies`, call `owner.finish(slots)` before a use of these parameters, which were copied early."""
    pending.add_copied(owner, slots)
    _watch_references()


def release_copies(owner: Any, slots: Iterable[Slot]) -> None:
    """Note that `owner` no longer has copies of these parameters."""
    pending.remove_copied(owner, slots)
    leave_references()


def release(owner: Any) -> None:
    """Note that nothing of `owner` is pending any more."""
    pending.remove(owner)
    leave_references()


def settle(borrowed: Iterable[torch.Tensor], used: Iterable[torch.Tensor], owner: Any) -> None:
    """Finish what a step of `owner` would find pending or awaited by others (Pending.touched_by_step)."""
    for slot in pending.touched_by_step(borrowed, used, owner):
        _finish(slot)


def backward_begins(roots: Iterable[Any], gradients: Iterable[torch.Tensor | None]) -> None:
    """Handle a backward pass that is about to begin at `roots`, with these gradients. A graph from before the last
    step() may have saved what pending updates change, under another version counter, and C++ would read it unseen.
    """
    thread, number = _kept_at
    if pending.kept and thread == threading.get_ident():
        with references.unhandled():
            nodes = [root.node if isinstance(root, GradientEdge) else root.grad_fn for root in roots]
        if any(node is not None and node._sequence_nr() < number for node in nodes):
            _flush_all()
    # Or it may add to a gradient by another tensor in the same memory.
    for slot in [slot for slot in pending.slots() if slot.life.to_come]:
        sent = slot.sent()
        if sent is not None and torch_aliases.is_held(parts_of(sent)[-1]):
            _finish(slot)
    references.look(gradients)


def _finish(slot: Slot) -> None:
    if slot.life.awaited:
        slot.rounds.settle([slot])
    elif slot.life.pending:
        slot.owner.finish([slot])


def owners() -> list[Any]:
    """Return the living owners passed to `watch`."""
    return list(_owners)


def after_compilation() -> bool:
    """Return True if torch.compile has compiled code in this process, which may use parameters undetected."""
    from torch._dynamo import convert_frame  # Slow to import: not before an optimizer is wrapped.

    return bool(convert_frame.FRAME_COUNTER)


def _flush_all() -> None:
    if references.is_at_work():
        return
    forget_dropped()
    for owner in list(pending.kept):
        owner.flush()


def use(used: Watched | tuple[Slot, ...]) -> None:
    """Handle a call that gets a watched parameter, or tensors that share memory with pending ones."""
    if torch.compiler.is_compiling():
        return
    if isinstance(used, Watched):
        for slot in used.slots:
            _reach(slot)
        return
    awaited: dict[Any, list[Slot]] = {}
    for slot in dict.fromkeys(used):
        if slot.life.awaited:
            # The use is of the gradient, not of the parameter, which has no pending update.
            awaited.setdefault(slot.rounds, []).append(slot)
        else:
            _reach(slot)
    for rounds, slots in awaited.items():
        rounds.settle(slots)


def _reach(slot: Slot) -> None:
    slot.sight = Sight.SEEN
    if slot.life.pending:
        slot.owner.finish([slot])
    elif slot.updated is not None:
        slot.streams.follow(slot.updated)


def _touch(value: Any) -> None:
    """Mark `value` as used if it is a watched parameter, and finish its update."""
    if torch.compiler.is_compiling() or references.is_blind():
        return
    watched = _watched.get(id(value))
    if watched is not None:
        for slot in watched.slots:
            _reach(slot)


def _before_forward(module: nn.Module) -> bool:
    """Finish the updates of a module's own parameters together, in one call of the optimizer.

    For a compiled module this includes its submodules. Return True if none of our modes may be set during its call.
    """
    if not _watched and not references.watching_here():
        return False
    if references.is_at_work():
        return compiled.is_compiled(module)
    if references.watching_here() and not pending.kept:
        leave_references()
    if isinstance(module, torch.jit.ScriptModule):
        _flush_all()
    if compiled.is_compiled(module):
        if any(isinstance(part, torch.jit.ScriptModule) for part in module.modules()):
            _flush_all()
        _finish_all(compiled.parameters_of(module))
        return True
    if module._parameters:
        _finish_all(module._parameters.values())
    return isinstance(module, _BY_MODES) and not module.training


_look_before = _before_forward
"""`_before_forward` for the patch of modules; hidden from torch.compile once that has compiled any code."""


def _finish_all(params: Iterable[torch.Tensor | None]) -> None:
    """Bring these parameters up to date, with one call per optimizer."""
    late: dict[Any, list[Slot]] = {}
    for param in params:
        watched = _watched.get(id(param))
        if watched is None:
            continue
        for slot in watched.slots:
            if slot.life.pending:
                slot.sight = Sight.SEEN
                late.setdefault(slot.owner, []).append(slot)
            else:
                _reach(slot)
    for owner, slots in late.items():
        owner.finish(slots)


def _watch_references() -> None:
    references.watch_here(pending.by_memory, _watched, _learning, use)


def within_backward(watched: bool) -> AbstractContextManager[None]:
    """Return a context for a backward pass; its hooks are watched if `watched` or if an update is pending."""
    tables = (pending.by_memory, _watched, _learning, use) if watched or pending.by_memory else ()
    return references.within_backward(*tables)


def watch_thread(woken: bool = False) -> None:
    """Detect uses in this thread, too, from now on, if anything is pending or uses are being noted; if `woken`, also if
    another thread may leave something pending soon.
    """
    due = pending.kept or _learning or (woken and _owners)
    if due and not (references.watching_here() or threads.is_unwatched()):
        _watch_references()


def main_is_seen() -> bool:
    """Return True if uses in the main thread are detected, now or once its present wait ends."""
    main = threading.main_thread()
    return threading.get_ident() == main.ident or references.watching_in(main) or threads.main_waits()


def _before_fork() -> None:
    """Leave nothing pending for a child, and no update half done: other threads make no updates during the fork."""
    if references.is_at_work():
        return
    # Awaited gradients come first: a thread that waits for them holds a lock under which others wait for updates.
    for owner in sorted(pending.kept, key=lambda owner: (hasattr(owner, "updating"), id(owner))):
        if hasattr(owner, "updating"):
            hold_over_fork(owner.updating)
        owner.flush()


def _in_the_child() -> None:
    """Expect no averages in the child, and leave whatever another thread had begun as it is."""
    references.stop_here(for_good=True)
    slots = [slot for watched in list(_watched.values()) for slot in watched.slots]
    for event in (UPDATE, FORGET):
        move(slots, event)
    pending.clear()
    _learning.clear()


def leave_references() -> None:
    """Stop watching uses in this thread, which saves the cost, if no use would wait or be noted."""
    if not pending.kept and not _learning:
        references.stop_here()


def _call_unwatched(call: Callable[..., Any], module: nn.Module, args: Any, kwargs: Any) -> Any:
    """Call a module whose parameters are up to date, unwatched. Compiled code must not use other pending ones."""
    if not compiled.is_compiled(module):
        _flush_all()
        with references.aside():
            return call(module, *args, **kwargs)
    compiled.tell_of_whole(module, lambda: [slot for watched in _watched.values() for slot in watched.slots])
    several = functools.partial(
        _wait_from_now_on, "torch.compile made several graphs of a module, with Python between them"
    )
    with references.away(), compiled.at_work(module, several):
        result = call(module, *args, **kwargs)
    leave_references()
    return result


def _before_compilation() -> None:
    """Leave nothing pending, and none of our hooks, for torch.compile to find."""
    global _look_before
    if _look_before is _before_forward:
        _look_before = compiled.unseen(_before_forward)
    if not _graphs_are_told or compiled.here.module is None:
        references.stop_here(for_good=True)
        _wait_from_now_on("torch.compile compiles something other than a module")
        return
    for owner in owners():
        owner.before_compilation()
    _flush_all()


def _of_graph(tensors: list[torch.Tensor]) -> None:
    """Check the tensors that a compiled graph takes: step() waits if parameters of other modules are among them."""
    running = compiled.here.module
    if not _watched or running is None:
        return
    known = {storage_key(param) for param in compiled.parameters_of(running)}
    others = {storage_key(slot.param) for watched in _watched.values() for slot in watched.slots[:1]} - known
    if any(storage_key(tensor) in others for tensor in tensors):
        _wait_from_now_on("a module compiled by torch.compile uses parameters of others")


def _wait_from_now_on(why: str) -> None:
    if owners():
        warn_once(f"step() waits for all updates from now on: {why}")
    for owner in owners():
        owner.keep_barrier()
    _flush_all()


@functools.cache
def install() -> None:
    """Patch torch once. Without watched parameters the patches only look into an empty table."""
    global _graphs_are_told
    _graphs_are_told = compiled.watch(_before_compilation, _of_graph)
    _patch_call()
    for name in ("state_dict", "load_state_dict", "_apply"):
        call_before(nn.Module, name, lambda *_, **__: _flush_all())
    for name in ("__deepcopy__", "__reduce_ex__"):
        call_before(nn.Parameter, name, lambda parameter, *_, **__: _touch(parameter))
    call_before(DeviceContext, "__exit__", lambda *_: references.above_default_device())
    patch_parameters(_touch)
    patch_zero_grad()
    watch_unseen(_flush_all, _before_sending)
    torch_aliases.install()
    wrap_imported()
    begins = functools.partial(references.watch_here, pending.by_memory, _watched, _learning, use, stays=True)
    wakes = functools.partial(watch_thread, woken=True)
    threads.watch_all(begins, lambda: references.stop_here(for_good=True), wakes, _flush_all)
    os.register_at_fork(before=_before_fork, after_in_child=_in_the_child)


def _before_sending(tensor: torch.Tensor) -> None:
    _touch(tensor)
    if found := pending.by_memory.get(storage_key(tensor)):
        use(found)
    watched = _watched.get(id(tensor))
    if watched is not None:
        watched.memory.sent = True


def _patch_call() -> None:
    original: Callable[..., Any] = nn.Module.__call__

    @passed_over
    @functools.wraps(original)
    def wrapper(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or compiled.here.module is not None or not _look_before(self):
            return original(self, *args, **kwargs)
        return _call_unwatched(original, self, args, kwargs)

    compiled.leave_alone(wrapper)
    compiled.leave_alone(_call_unwatched)
    nn.Module.__call__ = wrapper  # type: ignore[method-assign]
