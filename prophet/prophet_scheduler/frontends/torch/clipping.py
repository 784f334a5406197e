"""Clipping of gradients, by their total norm or by value, while their averages are still in flight.

Rule of this file: the parts of torch.nn.utils.clip_grad_norm_ and clip_grad_value_, and when they need not wait. The
engine supplies the norms (`AwaitedRounds.norms`).

torch reads all gradients for their norm and then scales each, so every average would have to arrive before the first
update. If the engine knows the norms earlier, their total is computed as in torch. The change to each gradient is kept
with it (`Slot.change`) until its average has arrived and something reads it. Results are bit-identical to torch's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence

import torch
from torch.nn.utils import clip_grad

from prophet_scheduler.frontends.importlib_bootstrap import passed_over
from prophet_scheduler.frontends.torch import guards as torch_guards
from prophet_scheduler.frontends.torch import references
from prophet_scheduler.frontends.torch.life import Life
from prophet_scheduler.frontends.torch.slot import Slot

NORM = 2.0
"""Usual order of norms."""
_TOTAL, _CLIP = "_get_total_norm", "_clip_grads_with_norm_"
"""Functions called by clip_grad_norm_ since torch 2.6. In earlier releases torch reads all gradients."""
_BY_VALUE = "clip_grad_value_"

ROUNDING = 1e-4
"""Greatest difference of two norms, as a share of one, that may be due to rounding."""


@functools.cache
def install() -> None:
    """Clip awaited gradients in this way from now on."""
    if not (hasattr(clip_grad, _TOTAL) and hasattr(clip_grad, _CLIP)):
        return
    setattr(clip_grad, _TOTAL, _before_total(getattr(clip_grad, _TOTAL)))
    setattr(clip_grad, _CLIP, _before_clip(getattr(clip_grad, _CLIP)))
    by_value = _before_clip_by_value(getattr(clip_grad, _BY_VALUE))
    for module in (clip_grad, torch.nn.utils):  # A program that imported the function earlier reads all gradients.
        setattr(module, _BY_VALUE, by_value)


def _before_total(original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @passed_over
    @functools.wraps(original)
    def total_norm(
        tensors: torch.Tensor | Iterable[torch.Tensor],
        norm_type: float = NORM,
        error_if_nonfinite: bool = False,
        foreach: bool | None = None,
    ) -> torch.Tensor:
        gradients = _listed(tensors)
        order = float(norm_type)  # It may be "inf", too.
        total = _total_of(gradients, order) if order > 0 else None
        if total is None or (error_if_nonfinite and not bool(total.isfinite())):
            return original(gradients, norm_type, error_if_nonfinite, foreach)
        return total

    return total_norm


def _before_clip(original: Callable[..., None]) -> Callable[..., None]:
    @passed_over
    @functools.wraps(original)
    def clip(
        parameters: torch.Tensor | Iterable[torch.Tensor],
        max_norm: float,
        total_norm: torch.Tensor,
        foreach: bool | None = None,
    ) -> None:
        listed = _listed(parameters)
        slots = _awaited_of(listed)
        if not slots:
            original(listed, max_norm, total_norm, foreach)
            return
        # torch's own function computes the factor.
        one = torch.zeros_like(total_norm, requires_grad=True)
        one.grad = torch.ones_like(total_norm)
        original([one], max_norm, total_norm, foreach)
        for slot in slots:
            slot.change = functools.partial(torch.Tensor.mul_, other=one.grad)

    return clip


def _before_clip_by_value(original: Callable[..., None]) -> Callable[..., None]:
    @passed_over
    @functools.wraps(original)
    def clip(parameters: torch.Tensor | Iterable[torch.Tensor], clip_value: float, foreach: bool | None = None) -> None:
        listed = _listed(parameters)
        slots = _awaited_of(listed)
        if not slots:
            original(listed, clip_value, foreach)
            return
        limit = float(clip_value)
        for slot in slots:
            slot.change = functools.partial(torch.Tensor.clamp_, min=-limit, max=limit)

    return clip


def _total_of(gradients: Sequence[torch.Tensor], order: float) -> torch.Tensor | None:
    """Return their norm of this order as torch would compute it; None if torch has to read them."""
    if torch.compiler.is_compiling():
        return None
    with references.at_work(), references.unhandled():
        slots = _awaited(gradients) or _read_in_part(gradients)
    if not slots:
        return None
    rounds = slots[0].rounds
    with references.at_work(), torch.no_grad():
        norms: torch.Tensor | None = rounds.norms(slots, order)
        if norms is not None and _are_of(norms, slots, order):
            total: torch.Tensor = torch.linalg.vector_norm(norms, order)
            return total
    rounds.settle(slots)  # torch will read them all; watching then ends if nothing else is awaited.
    return None


def _read_in_part(gradients: Sequence[torch.Tensor]) -> list[Slot]:
    """Return the slots if some averages may have been read already, and are of a module whose norms differ from torch's
    by rounding; otherwise an empty list. A program may read gradients on one rank only, but all ranks must clip alike.
    """
    rounded = [owner for owner in torch_guards.owners() if getattr(owner, "norms_are_rounded", False)]
    slots = {id(slot.param.grad): slot for rounds in rounded for slot in rounds.slots}
    known = [slot for gradient in gradients if (slot := slots.get(id(gradient))) is not None and _holds(slot, gradient)]
    alike = all(slot.rounds is known[0].rounds for slot in known)
    return known if len(known) == len(gradients) == len(set(known)) and alike else []


def _holds(slot: Slot, gradient: torch.Tensor) -> bool:
    """Return True if this gradient has the slot's average, or awaits it, without changes that are still to come."""
    if slot.life is Life.AWAITED and torch_guards.pending.awaited_by(gradient) is not slot:
        return False
    return slot.change is None and slot.life in (Life.LOCAL, Life.AWAITED, Life.HOME)


def _are_of(norms: torch.Tensor, slots: Sequence[Slot], order: float) -> bool:
    """Return True if gradients that have got their averages still hold these, going by their norms."""
    read = [place for place, slot in enumerate(slots) if slot.life is not Life.AWAITED]
    if not read:
        return True
    with references.unhandled():
        grads = [grad for place in read if (grad := slots[place].param.grad) is not None]
        own = torch.stack(torch._foreach_norm(grads, order))
        return torch.allclose(norms[read], own, rtol=ROUNDING, atol=0.0, equal_nan=True)


def _awaited(gradients: Sequence[torch.Tensor]) -> list[Slot]:
    """Return the slots if all averages are in flight, without changes, and in one module; otherwise an empty list."""
    slots = [torch_guards.pending.awaited_by(gradient) for gradient in gradients]
    known = [slot for slot in slots if slot is not None and slot.change is None]
    alike = all(slot.rounds is known[0].rounds and _lies_alike(slot) for slot in known)
    return known if len(known) == len(slots) == len(set(known)) and alike else []


def _lies_alike(slot: Slot) -> bool:
    """Return True if the average has the gradient's memory layout, which determines the order of summation."""
    gradient = slot.sent()
    if gradient is None:
        return False
    return gradient.stride() == slot.view.stride() and gradient.dtype == slot.param.dtype == torch.float32


def _awaited_of(parameters: Sequence[torch.Tensor]) -> list[Slot]:
    """Return `_awaited` for the gradients of these parameters, unless torch.compile traces the caller."""
    if torch.compiler.is_compiling():
        return []
    with references.at_work(), references.unhandled():
        return _awaited([param.grad for param in parameters if param.grad is not None])


def _listed(tensors: torch.Tensor | Iterable[torch.Tensor]) -> list[torch.Tensor]:
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
