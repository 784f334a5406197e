"""Keys that are opened ahead: sent for the first time before anything depends on them.

Rule of this file: when a new key's first bytes leave, and the call into BytePS that sends them. Which keys are new, and
when the cut that needs them holds, is keyed_arena.py's and cutting.py's.

BytePS 0.2.5 opens a key by pushing its whole length, in the thread that has its first tensor and past all queues, and
waits there until every worker has pushed it (`InitTensor`). The values do not matter, the length fixes the server's
memory, and no shorter push can do that. What can be chosen is when: here in a thread of its own, while the cut that
holds goes on. Keys leave in the gaps, i.e. while no push of a gradient waits or is under way, and so many more that all
have left after SPREAD_ROUNDS rounds. At most MOST_IN_FLIGHT bytes of them are on the wire, for what gradients there are
next has to wait for those.

All workers open the same keys in the same order. So they never wait in a circle: of the keys that are not open on all,
the first one is under way on each worker or is its next, since all before it are over.

Nothing depends on it. A key that was not opened ahead, after a failure say, is opened by its first push.
"""

from __future__ import annotations

import ctypes
import logging
import struct
import threading
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from prophet.core.cut import RECUT_ROUNDS

SPREAD_ROUNDS = RECUT_ROUNDS - 1
"""All keys have left when so many rounds have begun, gaps or not: in time for the next page. Where there are no gaps
the bytes cost the same whenever they go, and the old cut would hold for longer."""
MOST_IN_FLIGHT = 256 * 1024
"""Bytes; a larger key is alone. It takes 8 ms at 250 Mbit/s, and keeps a wire of 10 Gbit/s busy for 0.2 ms of delay."""
POLL_S = 0.002
"""How often it is asked whether the wire is idle."""

_INITIALIZE = "_ZN6byteps6common10InitTensorERNS0_13BytePSContextEmiPv"
_CONTEXT = "_ZN6byteps6common18GetContextFromNameERK"
_NEW_STRING = "NSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
_OLD_STRING = "Ss"
_TYPES = {
    torch.float32: 0,
    torch.float64: 1,
    torch.float16: 2,
    torch.uint8: 3,
    torch.int32: 4,
    torch.int8: 5,
    torch.int64: 6,
}
"""BytePS's numbers for types (`DataType` of its common.h)."""

logger = logging.getLogger("prophet")


class Key(NamedTuple):
    """A name that BytePS knows as declared, and the tensor that will travel under it."""

    name: str
    tensor: torch.Tensor


class Pace:
    """When keys of these bytes may leave, one after another. Pure: it is told of rounds and of keys that are open."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self._sizes = sizes
        self._total = sum(sizes)
        self._begun = 0
        self._begun_bytes = 0
        self._in_flight = 0
        self.ended = 0
        """Keys that are open."""
        self.rounds = 0
        """Rounds that have begun since the first key might leave."""

    @property
    def left(self) -> bool:
        """Whether some are still to begin."""
        return self._begun < len(self._sizes)

    @property
    def over(self) -> bool:
        """Whether all are open."""
        return self.ended == len(self._sizes)

    def may_begin(self, idle: bool) -> bool:
        """Whether the next one may leave now. `idle`: no push of a gradient waits or is under way."""
        if not self.left or (self._in_flight and self._in_flight + self._sizes[self._begun] > MOST_IN_FLIGHT):
            return False
        return idle or self._begun_bytes * SPREAD_ROUNDS < self._total * self.rounds

    def begin(self) -> int:
        """The next one leaves; its number."""
        size = self._sizes[self._begun]
        self._begun += 1
        self._begun_bytes += size
        self._in_flight += size
        return self._begun - 1

    def end(self, number: int) -> None:
        """This one is open."""
        self._in_flight -= self._sizes[number]
        self.ended += 1


class Opening:
    """Keys on their way, opened by threads of their own. `open_key` returns when its key is open on all workers.

    `idle()` says whether no push of a gradient waits or is under way. All methods are safe to use from any thread.
    """

    def __init__(self, keys: Sequence[Key], open_key: Callable[[Key], None], idle: Callable[[], bool]) -> None:
        self._keys = keys
        self._open_key = open_key
        self._idle = idle
        self._pace = Pace([key.tensor.nbytes for key in keys])
        self._changed = threading.Condition()
        self._hurried = False
        self._failed = False
        _under_way.add(self)
        threading.Thread(target=self._run, name="prophet-opening", daemon=True).start()

    @property
    def done(self) -> bool:
        """Whether all are open, or Prophet has failed to open them and leaves that to their first pushes."""
        with self._changed:
            return self._failed or self._pace.over

    def round_begins(self) -> None:
        """The job's next round."""
        with self._changed:
            self._pace.rounds += 1
            self._changed.notify_all()

    def finish(self, patience_s: float) -> bool:
        """Opens what is left without regard for anything. False where no key moved for so long.

        Before BytePS ends: other workers may wait for ours.
        """
        with self._changed:
            self._hurried = True
            self._changed.notify_all()
            while not self.done:
                before = self._pace.ended
                if not self._changed.wait(patience_s) and self._pace.ended == before and not self.done:
                    return False
        return True

    def _run(self) -> None:
        try:
            while (number := self._next()) is not None:
                # BytePS's call waits for all workers, so each has a thread, as in BytePS itself.
                threading.Thread(target=self._open, args=(number,), name="prophet-open", daemon=True).start()
        except Exception as error:
            self._fail(error)

    def _next(self) -> int | None:
        """Waits until a key may leave; None where none is left."""
        with self._changed:
            while self._pace.left and not self._failed:
                if self._pace.may_begin(self._hurried or self._idle()):
                    return self._pace.begin()
                self._changed.wait(POLL_S)
        return None

    def _open(self, number: int) -> None:
        try:
            self._open_key(self._keys[number])
        except Exception as error:
            self._fail(error)
        with self._changed:
            self._pace.end(number)
            self._changed.notify_all()

    def _fail(self, error: Exception) -> None:
        with self._changed:
            if not self._failed:
                logger.warning("Prophet opens keys as they are used: %s: %s", type(error).__name__, error)
            self._failed = True
            self._changed.notify_all()


_under_way: weakref.WeakSet[Opening] = weakref.WeakSet()


def finish_all(patience_s: float) -> bool:
    """See Opening.finish."""
    return min([opening.finish(patience_s) for opening in list(_under_way)], default=True)


class _NewString(ctypes.Structure):
    """A std::string of today's C++ ABI, as far as a reader looks at it."""

    _fields_ = [("data", ctypes.c_char_p), ("length", ctypes.c_size_t), ("local", ctypes.c_char * 16)]


class _OldString(ctypes.Structure):
    """One of before 2015: a pointer to its characters, right behind what is known of them."""

    _fields_ = [("data", ctypes.c_void_p)]


_KNOWN = struct.Struct("@NNi0N")
"""Length, capacity, and how many share it."""
_NOT_SHARED = -1
"""Whoever keeps it makes a copy."""


def initializer_of(library: Path) -> Callable[[Key], None] | None:
    """What opens a key in this library of BytePS for PyTorch; None where it exports no such function.

    It waits, without the interpreter lock, until all workers have opened the key, and does nothing where it is open.
    """
    loaded = ctypes.CDLL(str(library))
    initialize = getattr(loaded, _INITIALIZE, None)
    new, old = (getattr(loaded, _CONTEXT + string, None) for string in (_NEW_STRING, _OLD_STRING))
    context_of = new or old
    if initialize is None or context_of is None:
        return None
    initialize.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
    initialize.restype = None
    context_of.argtypes = [ctypes.c_void_p]
    context_of.restype = ctypes.c_void_p

    def open_key(key: Key) -> None:
        name = f"byteps.{key.name}".encode()  # as its PyTorch part calls it
        text: ctypes.Structure
        if new is not None:
            text = _NewString(name, len(name), b"")
        else:
            characters = ctypes.create_string_buffer(_KNOWN.pack(len(name), len(name), _NOT_SHARED) + name)
            text = _OldString(ctypes.addressof(characters) + _KNOWN.size)
        tensor = key.tensor
        address = tensor.data_ptr() if tensor.is_cpu else None
        initialize(context_of(ctypes.addressof(text)), tensor.nbytes, _TYPES[tensor.dtype], address)

    return open_key
