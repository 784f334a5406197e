"""Gradients as they travel: which share a tensor, their buffers, and one round of push and pull.

Rule of this file: buffers, handles and rounds; it knows parameters as tensors with a gradient, but no
optimizer and no module.

Two keys a gradient. A server overwrites a key's sum at the first push of a new round, while a slower worker may
still wait for the last one. So each bucket has two BytePS tensors and uses them in turn
(docs/decisions/two-keys-a-gradient.md has the argument). It needs two things: no push before the last pull of the same
bucket is over (`Bucket.stage` insists), and tensors of its own for each bucket.

Fusion copies elements without mixing them, and BytePS adds and divides element by element, so a fused
gradient has the same bits as one that travels alone.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from typing import Any

import torch

from prophet_byteps.torch.streams import Event, Stream, Streams

_FUSIBLE = (torch.float32, torch.float64)
"""For half precision the server's sum may round an element differently at another offset."""


def fusible_kind(param: torch.Tensor) -> Hashable | None:
    """What prophet.core.fusion.fuse compares: tensors of one dtype and device may travel together."""
    return (param.dtype, param.device) if param.dtype in _FUSIBLE else None


class Slot:
    """One parameter's place in its bucket, and where it stands in this round.

    `left`: backward passes until its gradient is due. `staged`: the gradient is in the bucket's buffer.
    `touched`: the program reached the parameter in a way that is watched since the last step.
    `group`: the parameter group whose hyper-parameters the pending update takes, None for no update.
    `position`: the parameter's place among all that the optimizer updates.
    `watched`: what all optimizers of this parameter share (guards.py).
    """

    def __init__(self, owner: Any, name: str, param: torch.Tensor, passes: int) -> None:
        self.owner = owner
        self.name = name
        self.param = param
        self.left = passes
        self.bucket: Bucket | None = None
        self.place = 0
        self.group: int | None = None
        self.position = 0
        self.seen: tuple[weakref.ref[torch.Tensor], int] | None = None
        self.staged = False
        self.touched = False
        self.watched: Any = None

    def see(self, grad: torch.Tensor | None) -> None:
        """Remembers the gradient as the program is to find it."""
        self.seen = None if grad is None else (weakref.ref(grad), grad._version)

    def grad_unchanged(self) -> bool:
        """True while the program has neither cleared nor written the gradient that was staged."""
        grad = self.param.grad
        if grad is None or self.seen is None:
            return False
        reference, version = self.seen
        return reference() is grad and version == grad._version

    def grad_as_seen(self) -> bool:
        """True while `.grad` is as the last step left it, which may be nothing."""
        return self.grad_unchanged() or (self.param.grad is None and self.seen is None)


class Bucket:
    """Gradients that travel as one tensor: a pair of buffers at fixed addresses, used in turn.

    `index` is the bucket's place in forward order, 0 the most urgent; BytePS gets priority -(index + 1).
    `names` are those of its two BytePS tensors.
    `pending`: step() was called, the updates of its parameters are still to come. `eager`: they must not
    outlast step(), since a gradient of one came without a use of the parameter that was watched. `late`: nothing had
    used its parameters when backward began. On devices with streams, `updated` is the end of its last update, and
    `home` the stream on which step() was called.
    """

    def __init__(
        self,
        index: int,
        names: tuple[str, str],
        slots: list[Slot],
        push: Callable[[torch.Tensor, str, int], int],
        streams: Streams,
    ) -> None:
        self.slots = slots
        self.handle: int | None = None
        self.pending = False
        self.eager = False
        self.late = False
        self.updated: Event = None
        self.home: Stream = None
        self.device = slots[0].param.device
        self.streams = streams
        self.names = names
        self._index = index
        self._push = push
        self._round = 0
        self._unstaged = len(slots)
        self._copies: list[Event] = []
        self._made: list[Event] = []
        self._flats: list[torch.Tensor] = []
        self._views: list[list[torch.Tensor]] = []
        for place, slot in enumerate(slots):
            slot.bucket, slot.place = self, place

    @property
    def name(self) -> str:
        """For people: the parameters this bucket carries."""
        others = len(self.slots) - 1
        return self.slots[0].name + (f" and {others} more" if others else "")

    @property
    def nbytes(self) -> int:
        """Bytes of one round."""
        return sum(slot.param.nbytes for slot in self.slots)

    @property
    def pushed(self) -> bool:
        """True from this round's push until `next_round`."""
        return self._unstaged == 0

    def stage(self, slot: Slot) -> None:
        """Copies the parameter's gradient (zeros where it has none) for this round; pushes when all are there."""
        view = self._view(slot, self._round % 2)
        self.streams.follow(self._made[self._round % 2])
        # The last update but one read its averages here, and came before the last one.
        self.streams.follow(self.updated)
        grad = slot.param.grad
        if grad is None:
            view.zero_()
        else:
            if grad.requires_grad or grad.is_sparse:
                what = "sparse" if grad.is_sparse else "itself part of a graph (create_graph)"
                raise ValueError(f"the gradient of {slot.name} is {what}, which BytePS cannot push")
            view.copy_(grad)
        slot.see(grad)
        self._copies.append(self.streams.mark())
        slot.staged = True
        self._unstaged -= 1
        if self._unstaged == 0:
            if self.handle is not None:
                raise RuntimeError(f"{self.name} is pushed again before its last pull is over")
            self.streams.before_push(self._copies)
            self._copies = []
            self.handle = self._push(self._flats[self._round % 2], self.names[self._round % 2], -(self._index + 1))
            self._round += 1

    def next_round(self, passes: int) -> None:
        """Opens the next round: each gradient is due after `passes` backward passes."""
        self._unstaged = len(self.slots)
        self._copies = []
        self.late = False
        for slot in self.slots:
            slot.staged = slot.touched = False
            slot.left = passes

    def restart(self, passes: int) -> None:
        """Begins anew with the first of the two keys, as a worker does that has just started."""
        self.handle = None
        self._round = 0
        self.next_round(passes)

    def average(self, slot: Slot) -> torch.Tensor:
        """The parameter's averaged gradient of the last round pushed, once its handle is done.

        In the bucket's own memory: valid until the second push from now. On the current stream only after
        `Streams.before_average`.
        """
        return self._views[(self._round - 1) % 2][slot.place]

    def _view(self, slot: Slot, parity: int) -> torch.Tensor:
        if len(self._flats) == parity:
            self._allocate()
        return self._views[parity][slot.place]

    def _allocate(self) -> None:
        """One flat buffer, and in it a view for each parameter with that parameter's own strides."""
        first = self.slots[0].param
        flat = torch.zeros(sum(s.param.numel() for s in self.slots), dtype=first.dtype, device=first.device)
        views, offset = [], 0
        for slot in self.slots:
            strides = torch.empty_like(slot.param, device="meta").stride()
            views.append(flat.as_strided(slot.param.size(), strides, offset))
            offset += slot.param.numel()
        self._flats.append(flat)
        self._views.append(views)
        self._made.append(self.streams.mark())
