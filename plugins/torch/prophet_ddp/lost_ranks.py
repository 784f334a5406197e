"""The other ranks of a module's group: who is behind the address in an error of gloo's, who was lost first, and who is
late.

Rule of this file: what ranks leave in their store for that, and the words for it; and which rank has ended, by the
connections of torch's own group.

An error has the address of one end of a broken connection. So each rank leaves the addresses of its ends. A rank that
has lost another mostly ends as well, which the next ranks see in turn. So the first loss is left there, too, and all
name that rank.

The store may have been lost with the rank. A rank sees mostly its neighbours in a ring leave, so it knows their ends
from the start.
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

from prophet_scheduler.frontends.torch.threads import OWN

ANSWER_LIMIT_S = 1.0
"""Seconds that a store has for an answer after a loss: its host may be what was lost."""

ENDED_TAG = 0x50726F70
"""Tag of what no rank sends."""

Ends = dict[str, list[int]]
"""Ports of a process's connections by its own address on them."""


class LostRanks:
    """Ranks that a module's group loses, as one of its ranks sees it. `members` are the group's ranks in the job, and
    `own` is the place of this one among them. They alone use this part of the store.
    """

    def __init__(self, store: Store, members: Sequence[int], own: int) -> None:
        self._store = store
        self._members = members
        self._own = own
        self._ends: dict[int, Ends] = {}
        """Ends of ranks by place in the group, as far as they are known."""

    def say(self) -> None:
        """Leave the ends of this rank for the others; again when it has made more connections."""
        self._store.set(f"ends {self._own}", json.dumps(ends_here()))

    def look(self) -> None:
        """Read the ends of this rank's neighbours. Call it once all ranks have left theirs."""
        for place in {(self._own + 1) % len(self._members), (self._own - 1) % len(self._members)}:
            self._ends[place] = self._read(place)

    def loss(self, error: str, iteration: int) -> str:
        """Return why averages will not come any more, by gloo's error in this rank in this iteration. Waits a second at
        most.
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
        """Tell the others that this rank waits in this iteration, and say in words which of them do not wait in it.
        Empty if the store does not answer, which has a second.
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

    def _read(self, place: int) -> Ends:
        ends: Ends = json.loads(self._store.get(f"ends {place}"))
        return ends

    def _behind(self, address: str, port: int) -> int | None:
        """Return the place of the rank with this end. None if it is unknown."""
        swapped = int.from_bytes(port.to_bytes(2, "little"), "big")  # gloo says it as it is on the wire.
        for wanted in (swapped, port):
            for place, ends in self._ends.items():
                if wanted in ends.get(address, ()):
                    return place
        return None

    def _cause(self, address: str, port: int) -> tuple[int, str] | None:
        """Return the place and the address of the rank that was lost first, which is this one if none is known yet."""
        if not self._store.check(["lost"]):
            place = self._behind(address, port)
            if place is None:  # By a connection that was made later, or the rank is no neighbour.
                self._ends = {place: self._read(place) for place in range(len(self._members)) if place != self._own}
                place = self._behind(address, port)
            if place is None:
                return None
            self._store.set("lost", json.dumps([place, address]))
        place, address = json.loads(self._store.get("lost"))
        return place, address


def _has_the_store(rank: int) -> bool:
    """True if the job's store is lost with this rank. torch warns at length of a store that is gone."""
    return rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != str(True)


_silent = False
"""True if a store of this process has not answered."""


def _answer(question: Callable[[], Any]) -> Any:
    """Return the answer to a question to a store; None if it is gone."""
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
    """Return a rank that has ended, as the `group` counts; None if none is known to have.

    Gloo takes no request for data from a closed connection. Others stay unanswered, which harms nothing. torch counts
    them and, where it is asked to compare all that ranks do, has another backend, which is left alone.
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
    """Return the ends of this process's own connections."""
    ends: Ends = {}
    with contextlib.suppress(OSError):  # No file descriptor is left to look.
        for file in list(Path("/proc/self/fd").iterdir()):
            end = _end(int(file.name))
            if end is not None:
                ends.setdefault(end[0], []).append(end[1])
    return ends


def _end(descriptor: int) -> tuple[str, int] | None:
    """Return the address and the port of this file descriptor. None if it is of something else."""
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
