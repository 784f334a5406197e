"""The other ranks of a module's group: which rank an error of gloo's means, which was lost first, and which is late.

Rule of this file: what ranks write to their store to find that out, and the words for it; and which rank has ended, as
the connections of torch's own group show.

An error names the address of one end of a broken connection. So each rank writes the addresses of its ends to the
store. A rank that has lost another usually exits too, which its own peers then notice. So the first loss is also in the
store, and all ranks name that rank.

The store may be lost with a rank. In a ring a rank usually loses a neighbour first, so it reads its neighbours' ends at
the start.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import Store

from prophet_scheduler.frontends.threads import OWN

ANSWER_LIMIT_S = 1.0
"""Maximum wait for a store's answer after a loss, in seconds: the store's host may be what was lost."""

ENDED_TAG = 0x50726F70
"""Tag that no rank ever sends."""

Ends = dict[str, list[int]]
"""Ports of a process's connections, by its own address on them."""


class LostRanks:
    """Losses in a module's group, as one rank sees them. `members` are the group's ranks by number in the job, and
    `own` is this rank's place among them. They alone use this part of the store.
    """

    def __init__(self, store: Store, members: Sequence[int], own: int) -> None:
        self._store = store
        self._members = members
        self._own = own
        self._ends: dict[int, Ends] = {}
        """Known ends of ranks, by place in the group."""

    def say(self) -> None:
        """Write this rank's ends to the store. Call it again after making more connections."""
        self._store.set(f"ends {self._own}", json.dumps(ends_here()))

    def look(self) -> None:
        """Read the ends of this rank's neighbours. Call it once all ranks have written theirs."""
        for place in {(self._own + 1) % len(self._members), (self._own - 1) % len(self._members)}:
            self._ends[place] = json.loads(self._store.get(f"ends {place}"))

    def loss(self, error: str, iteration: int) -> str:
        """Return why averages will no longer arrive, from gloo's error on this rank in this iteration. Takes a second
        at most.
        """
        named = re.search(r"\[([^]]+)\]:(\d+)", error)
        if named is None:
            return error.splitlines()[0] + (self.others(iteration) if re.search("timed? ?out", error, re.I) else "")
        address, port = named[1], int(named[2])
        if len(self._members) == 2:
            place: int | None = 1 - self._own
        else:
            place = self._behind(address, port)
            if place is None or not _has_the_store(self._members[place]):
                place, address = _answer(lambda: self._cause(address, port)) or (place, address)
        if place is None:
            return f"a rank at {address} was lost"
        return f"rank {self._members[place]} ({address}) was lost"

    def others(self, iteration: int) -> str:
        """Tell the others that this rank waits in this iteration, and return a phrase on those that do not. It is empty
        if the store does not answer within a second.
        """
        late = _answer(lambda: self._late(iteration))
        if late is None:
            return ""
        if not late:
            return ": all ranks wait, for the network"
        return f": rank{'s' * (len(late) > 1)} {' and '.join(map(str, late))} {'are' if len(late) > 1 else 'is'} late"

    def _late(self, iteration: int) -> list[int]:
        self._store.set(f"waits {self._own}", str(iteration))
        keys = {rank: f"waits {place}" for place, rank in enumerate(self._members)}
        return [
            rank for rank, key in keys.items() if not self._store.check([key]) or int(self._store.get(key)) < iteration
        ]

    def _behind(self, address: str, port: int) -> int | None:
        """Return the place of the rank that has this end; None if it is unknown."""
        swapped = int.from_bytes(port.to_bytes(2, "little"), "big")  # gloo prints it in network byte order.
        for wanted in (swapped, port):
            for place, ends in self._ends.items():
                if wanted in ends.get(address, ()):
                    return place
        return None

    def _cause(self, address: str, port: int) -> tuple[int, str] | None:
        """Return the place and address of the rank lost first, by default the one at this end; None if unknown."""
        if not self._store.check(["lost"]):
            place = self._behind(address, port)
            if place is None:  # The connection was made later, or the rank is no neighbour.
                others = (place for place in range(len(self._members)) if place != self._own)
                self._ends = {place: json.loads(self._store.get(f"ends {place}")) for place in others}
                place = self._behind(address, port)
            if place is None:
                return None
            self._store.set("lost", json.dumps([place, address]))
        place, address = json.loads(self._store.get("lost"))
        return place, address


def _has_the_store(rank: int) -> bool:
    """Return True if the job's store is lost with this rank. torch warns at length about a store that is gone."""
    return rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != str(True)


_silent = False
"""True once a store of this process has failed to answer."""


def _answer(question: Callable[[], Any]) -> Any:
    """Return the answer to a question to a store; None if the store is gone."""
    global _silent
    answers: list[Any] = []

    def ask() -> None:
        with contextlib.suppress(Exception):
            answers.append(question())

    if not _silent:
        thread = threading.Thread(target=ask, name=f"{OWN}asks", daemon=True)
        thread.start()
        thread.join(ANSWER_LIMIT_S)
        _silent = thread.is_alive()
    return answers[0] if answers else None


def ended_rank(group: dist.ProcessGroup) -> int | None:
    """Return a rank of `group` whose process has ended; None if none is known to have.

    Gloo refuses a receive from a closed connection. Receives from living ranks stay unanswered, which does no harm.
    Under TORCH_DISTRIBUTED_DEBUG=DETAIL torch would compare them among ranks: its other backend is left alone.
    """
    try:
        backend: Any = group._get_backend(torch.device("cpu"))
    except (RuntimeError, AttributeError):
        return None
    gloo: Any = dist.ProcessGroupGloo
    if not isinstance(backend, gloo):
        return None
    for rank in range(group.size()):
        try:
            if rank != group.rank():
                backend.recv([torch.empty(1, dtype=torch.uint8, device="cpu")], rank, ENDED_TAG)
        except RuntimeError:
            return rank
    return None


def ends_here() -> Ends:
    """Return this process's own ends of its connections."""
    ends: Ends = {}
    with contextlib.suppress(OSError):  # There may be no file descriptor left for this.
        for file in list(Path("/proc/self/fd").iterdir()):
            end = _end(int(file.name))
            if end is not None:
                ends.setdefault(end[0], []).append(end[1])
    return ends


def _end(descriptor: int) -> tuple[str, int] | None:
    """Return the address and port of a file descriptor; None if it is not a network connection."""
    try:
        end = socket.socket(fileno=descriptor)
    except OSError:
        return None
    try:
        if end.family not in (socket.AF_INET, socket.AF_INET6):
            return None
        address, port, *_ = end.getsockname()
        return address.partition("%")[0], port
    finally:
        end.detach()
