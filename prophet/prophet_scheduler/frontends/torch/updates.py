"""Late updates of parameters: each at its parameter's next use, instead of all of them in step().

Rule of this file: one optimizer's pending updates, and how its own torch.optim class makes them. The engine's front end
decides when gradients are sent, and what a round is; guards.py detects uses of a parameter.

An update runs the optimizer's own step() on a view of its parameter groups. The view holds only the parameters whose
averages have arrived, with the averages in place of `.grad`. Every optimizer of torch.optim except LBFGS updates
parameter by parameter, so the result is bit-identical to one whole step. A learning rate scheduler runs right after
step(), so updates use the groups' hyper-parameters from the time of the call of step(). They also restore the settings
of the program's thread and process from that time (program_state.py).

A signal handler may re-enter this code in the middle of a wait (references.py), and may finish what was waited for. In
the middle of an update, a handler finds the program's optimizer with all of its groups: a stand-in makes the step.
"""

from __future__ import annotations

import contextlib
import gc
import threading
import time
import weakref
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch.optim import optimizer as torch_optimizer

from prophet_scheduler.forks import free_in_forks
from prophet_scheduler.frontends.notices import warn_once
from prophet_scheduler.frontends.torch import aliases as torch_aliases
from prophet_scheduler.frontends.torch import guards as torch_guards
from prophet_scheduler.frontends.torch import life, program_state, references
from prophet_scheduler.frontends.torch.life import DEFER, UPDATE, Sight, move
from prophet_scheduler.frontends.torch.memory import parts_of
from prophet_scheduler.frontends.torch.recording import shown
from prophet_scheduler.frontends.torch.slot import Slot
from prophet_scheduler.frontends.torch.streams import Event, Streams
from prophet_scheduler.watch import training

WAIT_LIMIT_S = 0.002
"""Maximum sleep in seconds between two checks of a handle; bounds the cost of a missed wake-up."""
COMPLAIN_S = 60.0
"""Seconds of waiting before a warning. Ranks that have waited half of this time by then are not the late ones."""
own_hooks: set[int] = set()
"""Ids from torch of Prophet's own hooks around every step of every optimizer."""
LOOK_AT = 16
"""Parameters checked between two sleeps for updates that can be made meanwhile; a limit, since there may be many."""


class Abandoned(RuntimeError):
    """End of a wait for averages that will never arrive, in a program that has already had the error."""


class AverageSource:
    """Interface through which updates get averages from an engine. Engines override what is not implemented here."""

    def arrived(self, slot: Slot) -> bool:
        """Return True if this round's average is at its place in the arena. Do not call again after that."""
        raise NotImplementedError

    def landed(self, slot: Slot) -> bool:
        """Return True if the average has arrived and no stream would have to wait for it either."""
        return self.arrived(slot)

    def may_forget(self, slot: Slot) -> bool:
        """Return True if no update of an unreachable parameter need wait for this round's average."""
        return True

    def wait_activity(self, limit_s: float) -> None:
        """Wait until something has arrived, for at most `limit_s` seconds.

        If nothing more will arrive, raises the engine's error, or Abandoned if that was raised before.
        """
        raise NotImplementedError

    def progress(self) -> object:
        """Return a value that differs from the last one if there has been progress since."""
        raise NotImplementedError

    def others(self) -> str:
        """Tell the other ranks that this one waits. Return a phrase that names those that do not; empty if unknown."""
        return ""


class LongWait:
    """Context of a thread that may wait for several gradients in turn. The observer and torch's profiler are notified
    of the wait, and a long one causes one warning.
    """

    def __init__(self, wire: AverageSource) -> None:
        self._wire = wire
        self._since: float | None = None
        self._limits = [COMPLAIN_S, COMPLAIN_S / 2]
        self._shown = contextlib.ExitStack()

    def __enter__(self) -> LongWait:
        return self

    def goes_on(self, slot: Slot, now: float) -> None:
        """Note that the wait is for this gradient now."""
        training.waiting(slot.name, now, slot.blocks)
        if self._since is None:
            self._since = now
            self._shown.enter_context(shown("Prophet waits for", slot.name))
        while self._limits and now - self._since > self._limits[-1]:
            self._limits.pop()
            others = self._wire.others()
            if not self._limits:
                line = f"still waiting for the gradient of {slot.title} after {COMPLAIN_S:.0f} s{others}"
                warn_once(line, of_this_rank=True)

    def __exit__(self, *_error: object) -> None:
        if self._since is not None:
            self._shown.close()
            training.over(time.monotonic())


class _Step(NamedTuple):
    """Values of an optimizer at its last step(): hyper-parameters by group, and its own attributes."""

    groups: Sequence[dict[str, Any]] = ()
    own: Mapping[str, Any] = {}


class Updates:
    """Updates of one optimizer. `user_class` is the torch.optim class whose step() makes them.

    `_order` lists the slots to update, in forward order; a slot's index there is its `turn`. `_wire` supplies their
    averages. `stepping`: the optimizer itself is running.
    """

    _wire: AverageSource

    def __init__(self, optimizer: torch.optim.Optimizer, user_class: type[torch.optim.Optimizer]) -> None:
        self.stepping = False
        self._reference = weakref.ref(optimizer)
        self._user_class = user_class
        step: Any = user_class.step
        while getattr(step, "hooked", False):  # torch's wrapper, or ours around that
            step = step.__wrapped__
        self._step_without_hooks = step
        self.updating = free_in_forks(threading.RLock())
        """Held while a step leaves updates pending, and while waiting for and making updates."""
        self._order: list[Slot] = []
        self._last = _Step()
        self._state_by_slot: dict[Slot, dict[str, Any]] = {}
        """The optimizer's state at the last step(). It holds no parameters, so that the program can drop them."""
        self._entries: dict[Slot, dict[str, Any]] = {}
        """Copies of these states' contents at the last step()."""
        self._new = False
        """True if some parameters had no state before the last step()."""
        self._holders = 0, False
        """Number of holders of the dictionary of all states besides the optimizer; True if the program is one."""
        self._pending = 0
        self._kinds: list[dict[str, type]] = []
        """Types of the hyper-parameters at the last step(), by group and name."""
        self._look = 0
        self._stepped_in: program_state.Values = ()
        """State of the program at the last step()."""

    @property
    def _optimizer(self) -> torch.optim.Optimizer:
        optimizer = self._reference()
        assert optimizer is not None
        return optimizer

    def flush(self, patience_s: float | None = None) -> bool:
        """Finish every pending update. Return False if some remain after `patience_s` without any progress."""
        if self._pending == 0:
            return True
        return self.finish(self._order, patience_s)

    def finish(self, slots: Sequence[Slot], patience_s: float | None = None) -> bool:
        """Wait for these averages and update their parameters. Return False after `patience_s` without any progress.

        Parameters that follow in forward order, up to one without its average, are updated in the same call.
        """
        with self.updating:
            with references.at_work(), contextlib.suppress(Abandoned):
                # Each only once, in forward order: a module may list a parameter twice, or in another order.
                due = sorted({slot for slot in slots if slot.life.pending}, key=lambda slot: slot.assigned.turn)
                if due:
                    if not self._wait_for(due, patience_s):
                        return False
                    self._update([slot for slot in due if slot.life.pending] + self._back_after(due[-1]))
                    if life.validating:
                        self.validate()
            if self._pending == 0:
                torch_guards.release(self)
                self._none_pending()
        return True

    def validate(self) -> None:
        """Check that each pending update is this optimizer's, is counted, and is watched for uses of its parameter."""
        pending = [slot for slot in self._order if slot.life.pending]
        assert len(pending) == self._pending, (len(pending), self._pending)
        for slot in pending:
            assert slot.owner is self and self._order[slot.assigned.turn] is slot, slot.name
            assert torch_guards.pending.has(slot), slot.name

    def forget(self, slots: Iterable[Slot]) -> None:
        """Drop these updates: their parameters can no longer be accessed, or no average will arrive."""
        with references.at_work():
            gone = [slot for slot in slots if slot.life.pending]
            self._pending -= len(gone)
            move(gone, UPDATE)
            if self._pending == 0:
                self._drop_empty_states()
                torch_guards.release(self)
                self._none_pending()

    def _none_pending(self) -> None:
        """Forget what pending updates need: it would keep alive what the program drops or replaces."""
        self._state_by_slot, self._entries = {}, {}

    def state_of(self, slot: Slot) -> list[torch.Tensor]:
        """Return the state tensors of this parameter, to which the program may have references."""
        return [value for value in self._state_by_slot.get(slot, {}).values() if isinstance(value, torch.Tensor)]

    def state_is_held(self, slot: Slot) -> bool:
        """Return True if the program, which has dropped the optimizer, still holds any tensor of `state_of`."""
        own = self._entries.get(slot, {})
        tensors = [name for name, value in own.items() if isinstance(value, torch.Tensor)]
        return any(
            torch_aliases.holders(own, name) > 1 or any(map(torch_aliases.is_held, parts_of(own[name])))
            for name in tensors
        )

    def _state_is_out(self) -> bool:
        """Return True if the program holds the dictionary of all states, other than in optimizers that share it."""
        own = vars(self._optimizer)
        holders = torch_aliases.holders(own, "state")
        if holders != self._holders[0]:
            kind = torch.optim.Optimizer
            optimizers = [
                each
                for each in gc.get_referrers(own["state"])
                if isinstance(each, kind) or (isinstance(each, dict) and "param_groups" in each)
            ]
            self._holders = holders, holders >= len(optimizers)
        return self._holders[1]

    def _defer(self, slots: list[Slot], local: dict[int, list[torch.Tensor]], barrier: bool) -> None:
        """Leave the updates of these slots pending, except those that must not be late; with `barrier`, leave none.

        `local`: parameters by group, to be updated at once with their present `.grad`.
        """
        with self.updating, references.at_work():
            # An optimizer that refuses sharded parameters, or such hyper-parameters, must raise its error in step().
            first = not self._stepped_in and any(slot.partial for slot in slots)
            barrier = barrier or first or self._has_other_kinds()
            self._stepped_in = program_state.of_now()
            barrier = barrier or self._state_is_out() or not program_state.can_hold_later(self._stepped_in)
            # Uses are watched only after backward.
            barrier = barrier or references.in_backward() or not torch_guards.main_is_seen()
            for streams in {slot.streams for slot in slots}:
                streams.home = streams.current()
            move(slots, DEFER)
            self._pending = len(slots)
            self._look_at_state(slots, local)
            states = self._state_by_slot
            # Autograd graphs from before this step become invalid now, as after a whole step.
            _increment_versions([slot.param for slot in slots if slot.assigned.group is not None])
            exposed = torch_guards.keep(self, slots)
            # The program may use a parameter's states unseen if it holds their dictionary, like the one of all states.
            exposed |= {slot for slot in slots if slot in states and torch_aliases.holders(states, slot) > 1}
            if local:
                with references.aside():
                    self._run_optimizer(local, vars(self._optimizer)["state"])
            if life.validating:
                self.validate()
        self.finish([slot for slot in slots if slot.eager or barrier or slot in exposed])

    def _has_other_kinds(self) -> bool:
        """Return True if a hyper-parameter is of another type than at the step() before."""
        before = self._kinds
        self._kinds = [{name: type(value) for name, value in group.items()} for group in self._last.groups]
        return any(
            now.get(name, kind) is not kind
            for own, now in zip(before, self._kinds, strict=False)
            for name, kind in own.items()
        )

    def _needs_whole_step(self) -> bool:
        """Return True if something needs the step as a whole: hooks around it, a mode that runs at each of its calls of
        torch, or a scaler that may skip it.
        """
        optimizer = self._optimizer
        return bool(
            optimizer._optimizer_step_pre_hooks
            or optimizer._optimizer_step_post_hooks
            or torch_optimizer._global_optimizer_pre_hooks.keys() - own_hooks
            or torch_optimizer._global_optimizer_post_hooks
            or references.program_has_modes()
            or getattr(optimizer, "found_inf", None) is not None
            or getattr(optimizer, "grad_scale", None) is not None
        )

    def _settle_others(self) -> None:
        """First make other optimizers' earlier updates on the same memory, and settle awaited averages of gradients
        that the program has put in another parameter's `.grad`.
        """
        states = vars(self._optimizer)["state"].values()
        params = [param for _, param in self._grouped()]
        # A learning rate may be another optimizer's parameter.
        tables = chain(states, self._optimizer.param_groups)
        values = (value for own in tables for value in own.values() if isinstance(value, torch.Tensor))
        with references.unhandled():
            grads = [(param.grad, torch_guards.slots_of(param)) for param in params]
            borrowed = [grad for grad, own in grads if grad is not None and not any(map(Slot.grad_unchanged, own))]
        torch_guards.settle(borrowed, chain(params, values), self)

    def _grouped(self) -> Iterator[tuple[int, torch.Tensor]]:
        """Yield (group number, parameter) for all that the optimizer updates."""
        for number, group in enumerate(self._optimizer.param_groups):
            for param in group["params"]:
                yield number, param

    def _freeze_groups(self) -> Iterator[tuple[int, int, torch.Tensor]]:
        """Save the present hyper-parameters. Yields (group, position, parameter) for all that the optimizer updates."""
        own = vars(self._optimizer)
        kept = {name: value for name, value in own.items() if name not in ("state", "param_groups", "step")}
        groups = [
            {key: _of_now(value) for key, value in group.items() if key != "params"}
            for group in self._optimizer.param_groups
        ]
        self._last = _Step(groups, kept)
        for position, (number, param) in enumerate(self._grouped()):
            yield number, position, param

    def _wait_for(self, slots: Sequence[Slot], patience_s: float | None = None) -> bool:
        """Wait for the averages of all `slots`; make other possible updates meanwhile. Return False like `finish`."""
        since: float | None = None
        moved: object = None
        with LongWait(self._wire) as wait:
            for slot in slots:
                while not self._wire.arrived(slot):
                    early = self._back_meanwhile(slots)
                    if early:
                        self._update(early)
                        continue
                    now = time.monotonic()
                    if since is None:
                        since, moved = now, self._progress(slots, patience_s)
                    if patience_s is not None and now - since > patience_s:
                        progress = self._progress(slots, patience_s)
                        if progress == moved:
                            return False
                        since, moved = now, progress
                    wait.goes_on(slot, now)
                    with references.waiting():
                        self._wire.wait_activity(WAIT_LIMIT_S)
        return True

    def _progress(self, slots: Sequence[Slot], patience_s: float | None) -> object:
        """Return a value that differs after progress. It counts arrivals, in case the wire does not report progress."""
        return None if patience_s is None else (self._wire.progress(), sum(map(self._wire.landed, slots)))

    def _back_meanwhile(self, awaited: Sequence[Slot]) -> list[Slot]:
        """Return those of the next LOOK_AT parameters that can be updated and are not in `awaited`."""
        if self._pending <= len(awaited):
            return []
        back = []
        for _ in range(min(LOOK_AT, len(self._order))):
            self._look = (self._look + 1) % len(self._order)  # An earlier step may have had more slots.
            slot = self._order[self._look]
            if slot.life.pending and slot not in awaited and self._wire.landed(slot):
                back.append(slot)
        return back

    def _back_after(self, last: Slot) -> list[Slot]:
        """Return the parameters after `last` in forward order that can be updated, up to the first that cannot."""
        back = []
        for slot in self._order[last.assigned.turn + 1 :]:
            if not (slot.life.pending and self._wire.landed(slot)):
                break
            back.append(slot)
        return back

    def _update(self, slots: Sequence[Slot]) -> None:
        """Update parameters whose averages have arrived, all in one call of the optimizer."""
        if not slots:
            return
        used = {slot.streams: None for slot in slots}
        marks: dict[Streams, Event] = {}
        with references.aside(), contextlib.ExitStack() as modes:
            for streams in used:
                modes.enter_context(streams.on(streams.home))
                streams.before_average(end for slot in slots if slot.streams is streams for end in slot.ends())
            for slot in slots:
                if slot.updated is not None:
                    slot.streams.follow(slot.updated)
            modes.enter_context(program_state.as_of(self._stepped_in))
            try:
                with references.swapping:
                    self._update_here(slots)
            except Exception:
                self._drop_step(slots)
                raise
            except BaseException:  # An interrupt: some of these may be updated, and none may be updated twice.
                self.forget(slots)
                raise
            for streams in used:
                marks[streams] = streams.mark()
        for streams, mark in marks.items():
            streams.follow(mark)
        for slot in slots:
            slot.updated = marks[slot.streams]
        if self._pending == len(slots):  # Another thread may step once none is pending.
            self._drop_empty_states()
        move(slots, UPDATE)
        self._pending -= len(slots)

    def _drop_step(self, failed: Sequence[Slot]) -> None:
        """Make no more updates of a step of which these have failed. The program gets the error once, and finds all
        averages in `.grad`, as after a whole step.
        """
        self.forget(failed)
        rest = [slot for slot in self._order if slot.life.pending]
        self._wait_for(rest)
        with torch.no_grad():
            for slot in rest:
                slot.streams.before_average(slot.ends())
                slot.bring_home()
        self.forget(rest)

    def _update_here(self, slots: Sequence[Slot]) -> None:
        # In the optimizer's own order.
        due = sorted(
            (slot for slot in slots if slot.assigned.group is not None), key=lambda slot: slot.assigned.position
        )
        work: dict[int, list[torch.Tensor]] = {}
        for slot in due:
            assert slot.assigned.group is not None
            work.setdefault(slot.assigned.group, []).append(slot.param)
        state = defaultdict(dict, {slot.param: _copy_of(self._entries[slot]) for slot in due})
        before = [(slot, slot.param.grad) for slot in due]
        try:
            for slot in due:
                slot.param.grad = slot.average()
            self._run_optimizer(work, state)
            self._put_back(due, state)
            with torch.no_grad():
                for slot in slots:
                    if slot.assigned.group is None:  # It has left the optimizer's groups.
                        slot.bring_home()
        finally:
            for slot, grad in before:
                stepped, slot.param.grad = slot.param.grad, grad
                sent = slot.sent()
                if sent is not None:
                    slot.streams.keep(sent, slot.streams.home)
                    sharing = [other for other in slot.watched.slots if other is not slot and other.sent() is sent]
                    slot.bring_home(stepped)
                    for other in sharing:
                        other.see(sent)

    def _drop_empty_states(self) -> None:
        """Remove states that updates have left empty, since a whole step would not have created them."""
        optimizer = self._reference()
        if self._new and optimizer is not None:
            state: Any = vars(optimizer)["state"]
            for param in [param for param, own in state.items() if not own]:
                del state[param]
        self._new = False

    def _put_back(self, slots: Iterable[Slot], state: Mapping[torch.Tensor, dict[str, Any]]) -> None:
        """Store the state made by updates, except where the program has replaced it since step()."""
        for slot in slots:
            own, found = self._state_by_slot[slot], self._entries[slot]
            for name, made in state[slot.param].items():
                if made is not found.get(name, found) and own.get(name, found) is found.get(name, found):
                    own[name] = made

    def _run_optimizer(self, work: dict[int, list[torch.Tensor]], state: Any) -> None:
        """Run the user's own step on these parameters, by group number, with only this state."""
        if not work:
            return
        groups = [{**self._last.groups[number], "params": params} for number, params in work.items()]
        lent = {**self._last.own, "state": state, "param_groups": groups}
        stand_in = object.__new__(self._user_class)
        vars(stand_in).update(lent)
        with self._stepping():
            self._step_without_hooks(stand_in)
        optimizer = self._reference()
        for name, value in vars(stand_in).items() if optimizer is not None else ():
            if name not in lent or value is not lent[name]:
                vars(optimizer)[name] = value

    def _look_at_state(self, slots: Sequence[Slot], local: Mapping[int, list[torch.Tensor]]) -> None:
        """Remember each parameter's state, since a program may replace it. Create missing ones like a whole step."""
        state: Any = vars(self._optimizer)["state"]
        with references.unhandled():  # A tensor's hash is a function of torch.
            late = [slot.param for slot in slots if slot.assigned.group is not None]
            self._new = not all(param in state for param in late)
            if self._new:
                stepped = {id(param) for param in chain(late, *local.values())}
                for _, param in self._grouped():
                    if id(param) in stepped:
                        state.setdefault(param, {})
            known = ((slot, state.get(slot.param)) for slot in slots)
            self._state_by_slot = {slot: own for slot, own in known if own is not None}
        self._entries = {slot: _copy_of(own) for slot, own in self._state_by_slot.items()}

    @contextlib.contextmanager
    def _stepping(self) -> Iterator[None]:
        """Mark that the optimizer itself, not the program, accesses its state and groups within the context."""
        self.stepping, before = True, self.stepping
        try:
            with references.blind():
                yield
        finally:
            self.stepping = before


def unseen_use(slot: Slot, on_probation: bool) -> bool:
    """Return True if a parameter with a new gradient was used undetected before its update.

    On probation, parameters without a noticed use are only marked: their updates will not outlast step().
    """
    if slot.sight is Sight.SEEN:
        return False
    if on_probation:
        slot.eager = True
    late = slot.sight is Sight.LATE
    if late:
        warn_once(
            f"{slot.title} was used before its update had arrived, by a reference that the program kept; "
            "from now on step() waits for all updates",
            of_this_rank=True,
        )
    return late


def _copy_of(entries: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of a parameter's state with the same tensors; an object of the program's own class stays itself."""
    return dict(entries) if type(entries) is dict else entries


def _of_now(value: Any) -> Any:
    """Return a copy of a hyper-parameter, unaffected when the program changes it in place."""
    if isinstance(value, torch.Tensor):
        return value.clone()
    return type(value)(map(_of_now, value)) if type(value) in (list, tuple) else value


def _increment_versions(params: list[torch.Tensor]) -> None:
    """Increment the tensors' versions, which autograd compares, as a write would."""
    try:
        torch.autograd.graph.increment_version(params)
    except (AttributeError, TypeError, RuntimeError):  # torch 2.4 takes one tensor at a time.
        for param in params:
            torch.autograd.graph.increment_version(param)
