"""When gradients leave and when parameters are updated: the step without its barrier.

Rule of this file: one optimizer's rounds, from gradients that appear in backward to the updates that its
own torch.optim class makes of them, as late as the next use of each parameter. BytePS is reached through
`Engine` only; who uses a parameter is torch_guards.py's to notice.

An update runs the optimizer's own step() on a view of its parameter groups that holds only the parameters
whose averages are there, with their averages in place of `.grad`. Every optimizer of torch.optim but LBFGS
updates parameter by parameter, so the bits are those of one whole step. The groups' hyper-parameters are
those of the moment step() was called, since a learning rate scheduler runs right after it.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from prophet.plugins.byteps import torch_guards
from prophet.plugins.byteps.torch_buckets import Bucket, Slot, fusible_kind
from torch.optim import optimizer as torch_optimizer

from prophet.fusion import fuse

PROBATION_STEPS = 2
"""Steps that keep the barrier, while gradients show how the program reaches each parameter."""
WAIT_LIMIT_S = 0.002
"""Longest sleep between two looks at a handle: bounds the cost of a wake-up that was missed."""
COMPLAIN_S = 60.0

logger = logging.getLogger("prophet")
_warned: set[str] = set()


def warn_once(message: str) -> None:
    """The same warning only once in a process."""
    if message not in _warned:
        _warned.add(message)
        logger.warning("%s", message)


class Engine:
    """BytePS as the front end needs it, shared by all optimizers of the process.

    `bps` is the module byteps.torch; `wait_activity(limit_s)` returns when some tensor has completed.
    """

    def __init__(self, bps: Any, wait_activity: Callable[[float], None]) -> None:
        self.bps = bps
        self.wait_activity = wait_activity
        self._buckets = 0

    def take_indices(self, count: int) -> range:
        """Gradient ids for `count` buckets, different for every optimizer of the process."""
        self._buckets += count
        return range(self._buckets - count, self._buckets)

    def push(self, tensor: torch.Tensor, name: str, priority: int) -> int:
        handle: int = self.bps.byteps_push_pull(tensor, average=True, name=name, priority=priority)
        return handle

    def arrived(self, bucket: Bucket) -> bool:
        """Whether the bucket's last round is over."""
        if bucket.handle is None:
            return True
        if not self.bps.poll(bucket.handle):
            return False
        self.bps.synchronize(bucket.handle)
        bucket.handle = None
        return True


class Updates:
    """One optimizer: its gradients' rounds, and the updates that are still to come.

    `named` are the parameters that BytePS averages, in forward order; `passes` backward passes make a
    gradient. `user_class` is the torch.optim class that `optimizer` extends.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        user_class: type[torch.optim.Optimizer],
        named: Iterable[tuple[str, torch.Tensor]],
        engine: Engine,
        passes: int,
        fusion: bool,
    ) -> None:
        self.should_synchronize = True
        self.passes = passes
        self._optimizer = optimizer
        self._user_class = user_class
        step: Any = user_class.step
        self._step_without_hooks = step.__wrapped__ if getattr(step, "hooked", False) else step
        self._engine = engine
        self._fusion = fusion
        self._lock = threading.RLock()
        self._slots = {id(param): Slot(self, name, param, passes) for name, param in named}
        self._buckets: list[Bucket] = []
        self._groups: list[dict[str, Any]] = []
        self._pending = 0
        self._synchronized = False
        self._probation = PROBATION_STEPS
        torch_guards.watch(self, list(self._slots.values()))
        for slot in self._slots.values():
            param: Any = slot.param
            param.register_post_accumulate_grad_hook(self._make_gradient_hook(slot))

    # What the optimizer's methods call.

    def step(self, closure: Callable[[], Any] | None) -> Any:
        """Takes this round's gradients for an update; waits only for what cannot be updated later."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self.should_synchronize and (closure is not None or self._needs_whole_step()):
            self.synchronize()
        if self._synchronized or not self.should_synchronize:
            self.flush()
            self._synchronized = False
            self._user_class.step(self._optimizer)
            return loss
        self.flush()
        self._push_missing()
        local = self._freeze_groups()
        for bucket in self._buckets:
            bucket.pending = True
            bucket.next_round(self.passes)
        self._pending = len(self._buckets)
        torch_guards.keep(self)
        if local:
            self._run_optimizer(local)
        self.finish([bucket for bucket in self._buckets if bucket.eager or self._probation])
        self._probation -= self._probation > 0
        return None

    def synchronize(self) -> None:
        """Waits for everything: afterwards each parameter's `.grad` is its averaged gradient."""
        if self._synchronized:
            return
        self.flush()
        self._push_missing()
        with self._lock, torch.no_grad():
            for bucket in self._buckets:
                self._wait_for([bucket])
                for slot in bucket.slots:
                    if slot.param.grad is not None:
                        slot.param.grad.copy_(bucket.average(slot))
                    elif slot.param.requires_grad:
                        slot.param.grad = bucket.average(slot).clone()
                bucket.next_round(self.passes)
        self._synchronized = True

    def flush(self, limit_s: float | None = None) -> bool:
        """Finishes every pending update; False if some are still to come after `limit_s` seconds."""
        if self._pending == 0:
            return True
        return self.finish([bucket for bucket in self._buckets if bucket.pending], limit_s)

    def finish(self, buckets: Sequence[Bucket], limit_s: float | None = None) -> bool:
        """Waits for these buckets and updates their parameters; False if `limit_s` seconds were too short."""
        with self._lock:
            due = [bucket for bucket in buckets if bucket.pending]
            if not self._wait_for(due, limit_s):
                return False
            self._update(due)
        return True

    def keep_barrier(self) -> None:
        """From now on no update outlasts step()."""
        self._probation = -1
        self.flush()

    def set_passes(self, passes: int) -> None:
        self.passes = passes
        for slot in self._slots.values():
            slot.left = passes

    # Gradients on their way out.

    @staticmethod
    def _make_gradient_hook(slot: Slot) -> Callable[[torch.Tensor], None]:
        """A tensor's hooks are out of sight of the garbage collector: they must not keep the optimizer alive."""
        reference = weakref.ref(slot)

        def hook(_param: torch.Tensor) -> None:
            slot = reference()
            if slot is not None:
                slot.owner._gradient_ready(slot)

        return hook

    def _gradient_ready(self, slot: Slot) -> None:
        bucket = slot.bucket or self._plan_bucket(slot)
        if slot.staged:
            raise AssertionError(
                "Gradients were computed more than backward_passes_per_step times before call to step(). "
                "Increase backward_passes_per_step to accumulate gradients locally."
            )
        if not slot.touched:
            bucket.eager = True
        if bucket.pending:
            warn_once(
                f"{slot.name} was used before its update had arrived, by a reference that the program kept; "
                "from now on step() waits for all updates"
            )
            self.keep_barrier()
        self._synchronized = False
        slot.left -= 1
        if slot.left == 0:
            bucket.stage(slot)

    def _plan_bucket(self, slot: Slot) -> Bucket:
        with self._lock:
            self._plan()
        assert slot.bucket is not None
        return slot.bucket

    def _plan(self) -> None:
        """Puts the gradients in buckets, before the first of them leaves.

        Not sooner, because the program may move the model until then. Every worker comes here at the same
        point of the same program, so BytePS numbers the tensors alike on all of them. It spreads them over
        its servers by number, so those of one round are numbered in a row.
        """
        if self._buckets:
            return
        slots = list(self._slots.values())
        kinds = [fusible_kind(slot.param) if self._fusion else None for slot in slots]
        places = fuse([slot.param.nbytes for slot in slots], kinds)
        indices = self._engine.take_indices(len(places))
        self._buckets = [
            Bucket(index, [slots[place] for place in members], self._engine.push)
            for index, members in zip(indices, places, strict=True)
        ]
        for parity in (0, 1):
            for bucket in self._buckets:
                self._engine.bps.declare(bucket.names[parity])

    def _push_missing(self) -> None:
        """Sends what this round still lacks: every worker must push every tensor in every round."""
        self._plan()
        for bucket in self._buckets:
            if not bucket.pushed:
                for slot in bucket.slots:
                    if not slot.staged:
                        bucket.stage(slot)

    # Updates on their way in.

    def _needs_whole_step(self) -> bool:
        """True where something looks at the step as a whole: hooks around it, a scaler that may skip it."""
        optimizer = self._optimizer
        return bool(
            optimizer._optimizer_step_pre_hooks
            or optimizer._optimizer_step_post_hooks
            or torch_optimizer._global_optimizer_pre_hooks
            or torch_optimizer._global_optimizer_post_hooks
            or getattr(optimizer, "found_inf", None) is not None
            or getattr(optimizer, "grad_scale", None) is not None
        )

    def _freeze_groups(self) -> dict[int, list[torch.Tensor]]:
        """Keeps the hyper-parameters of this moment, and returns, by group, parameters that are not averaged.

        Those were frozen when the optimizer was wrapped; BytePS, too, updates them by the local gradient.
        """
        self._groups = []
        local: dict[int, list[torch.Tensor]] = {}
        for slot in self._slots.values():
            slot.group = None
        for number, group in enumerate(self._optimizer.param_groups):
            self._groups.append(
                {key: value.clone() if isinstance(value, torch.Tensor) else value for key, value in group.items()}
            )
            for param in group["params"]:
                own = self._slots.get(id(param))
                if own is None:
                    if param.grad is not None:
                        local.setdefault(number, []).append(param)
                elif param.requires_grad or param.grad is not None:
                    own.group = number
                    if own.seen is not None and not own.grad_unchanged():
                        warn_once(
                            "gradients were changed between backward() and step(), after they had left; "
                            "call optimizer.synchronize() before changing them"
                        )
        return local

    def _wait_for(self, buckets: Sequence[Bucket], limit_s: float | None = None) -> bool:
        """Waits until all of `buckets` have arrived, and meanwhile updates what else arrives."""
        started: float | None = None
        for bucket in buckets:
            while not self._engine.arrived(bucket):
                others = (other for other in self._buckets if other.pending and other not in buckets)
                early = next(filter(self._engine.arrived, others), None)
                if early is not None:
                    self._update([early])
                    continue
                now = time.monotonic()
                started = now if started is None else started
                if limit_s is not None and now - started > limit_s:
                    return False
                if now - started > COMPLAIN_S:
                    warn_once(f"still waiting for the gradient of {bucket.name} after {COMPLAIN_S:.0f} s")
                self._engine.wait_activity(WAIT_LIMIT_S)
        return True

    def _update(self, buckets: Sequence[Bucket]) -> None:
        """Updates the parameters of buckets that have arrived, all in one call of the optimizer."""
        work: dict[int, list[torch.Tensor]] = {}
        before: list[tuple[Bucket, Slot, torch.Tensor | None, bool]] = []
        for bucket in buckets:
            for slot in bucket.slots:
                if slot.group is not None:
                    work.setdefault(slot.group, []).append(slot.param)
                    before.append((bucket, slot, slot.param.grad, slot.grad_unchanged()))
        try:
            for bucket, slot, _, _ in before:
                slot.param.grad = bucket.average(slot)
            self._run_optimizer(work)
        finally:
            for bucket, slot, grad, unchanged in before:
                slot.param.grad = grad
                if grad is not None and unchanged:
                    grad.copy_(bucket.average(slot))
        for bucket in buckets:
            bucket.pending = False
        self._pending -= len(buckets)
        if self._pending == 0:
            torch_guards.release(self)

    def _run_optimizer(self, work: dict[int, list[torch.Tensor]]) -> None:
        """The user's own step on these parameters, by number of their group, and on nothing else.

        The caller may be a forward pass, whose modes must not reach the optimizer.
        """
        if not work:
            return
        optimizer = self._optimizer
        groups = optimizer.param_groups
        optimizer.param_groups = [{**self._groups[number], "params": params} for number, params in work.items()]
        try:
            with contextlib.ExitStack() as modes:
                if torch.is_inference_mode_enabled():
                    modes.enter_context(torch.inference_mode(False))
                for device_type in {params[0].device.type for params in work.values()}:
                    if torch.is_autocast_enabled(device_type):
                        modes.enter_context(torch.autocast(device_type, enabled=False))
                self._step_without_hooks(optimizer)
        finally:
            optimizer.param_groups = groups
