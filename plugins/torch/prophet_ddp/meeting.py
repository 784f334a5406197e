"""Meetings of ranks in a store: to exchange texts, to connect a group of ours, or to start a life of the job.

Rule of this file: which keys are read, and who waits for whom. takeover.py supplies the texts.

A store may outlive the ranks: torchrun's does, and a restarted rank finds the entries of an earlier life. So each rank
makes a random name, and waits only for entries under that name. The group's first rank publishes its name. The others
reply under it with their own names, and get all texts under those. A rank that has found the name of an earlier life
looks again.

A rank that fails while it connects reports that, and the others do not wait for it. Nor do they wait for a rank that
has ended, as the connections of torch's own group show.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import hashlib
import json
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store, _get_default_group, _get_default_store

from prophet_ddp.lost_ranks import ended_rank
from prophet_scheduler.core import settings as names
from prophet_scheduler.frontends.ending import WRONG, end_process
from prophet_scheduler.frontends.notices import warn_once

AGREE_LIMIT_S = 60.0
"""Time in which the ranks of a group must announce what they are about to do, in seconds after the first one. A rank
that is silent for longer is named, if the others go on waiting for it."""
SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 1e-3, 0.1
"""Seconds between two polls of the store: ranks usually arrive together, but may be a minute apart."""
READ_LIMIT_S = 5.0
"""Maximum time in seconds that the first rank stays for differing ranks to read its text: its store may go with it."""
CONNECT_LIMIT_S = 30.0
"""Maximum wait for another rank to connect, in seconds. All ranks have already reached that step."""
LOST_LOOK_S = 1.0
"""Seconds between two checks for ranks that have ended."""

_counts: dict[tuple[str, int], int] = {}
"""Number of meetings of a group so far, by its name in the store and this rank in it."""


class SilentRank(Exception):
    """A rank of the group has not answered in time, or has ended (`lost`): `rank`, as the group counts."""

    def __init__(self, rank: int, lost: bool = False) -> None:
        super().__init__(f"rank {rank} {'was lost' if lost else 'does not answer'}")
        self.rank = rank
        self.lost = lost


class LostRank(Exception):
    """Rank `rank` of the job has ended."""

    def __init__(self, rank: int) -> None:
        super().__init__(f"rank {rank} was lost")


def timeout_of(group: dist.ProcessGroup, device: torch.device) -> datetime.timedelta:
    """Return how long torch waits for a rank in an operation of the group on this device."""
    try:
        timeout: datetime.timedelta = group._get_backend(device).options._timeout
    except (RuntimeError, AttributeError):
        return datetime.timedelta(seconds=AGREE_LIMIT_S)
    return timeout


def agree_or_end(group: dist.ProcessGroup, text: str, limit_s: float, silent: str) -> tuple[list[str], Store]:
    """Call `agree`, and warn of a rank that is silent for AGREE_LIMIT_S. A rank that is silent for `limit_s` ends this
    process, and so does a store that is gone. `silent` is what messages say about a silent rank.

    Raises LostRank if a rank of the job was lost. torch's next operation in the group then fails with torch's words.
    """
    members = dist.get_process_group_ranks(group)

    def tell(rank: int) -> None:
        so_far = f"rank {members[rank]} {silent} within {AGREE_LIMIT_S:g} s"
        warn_once(f"Prophet: {so_far}; waiting for it up to {limit_s:g} s, as torch would")

    try:
        return agree(group, text, Patience(limit_s, tell, functools.partial(ended_rank, group)))
    except SilentRank as error:
        if error.lost:
            raise LostRank(members[error.rank]) from None
        end_process(
            f"rank {members[error.rank]} {silent} within {limit_s:g} s; start all ranks with {names.DDP_SCHEDULER}, or "
            "none",
            WRONG,
        )
    except RuntimeError as error:
        everybody = _get_default_group()
        if wait_until(lambda: ended_rank(everybody) is not None, READ_LIMIT_S):
            raise LostRank(0) from None  # The store was lost with its rank, of this group or not.
        end_process(f"the store through which ranks agree is gone: {str(error).splitlines()[0]}", WRONG)


def agree(group: dist.ProcessGroup, text: str, patience: Patience) -> tuple[list[str], Store]:
    """Call `meet` for the ranks of a group, in the default group's store."""
    members = dist.get_process_group_ranks(group)
    place = hashlib.sha256(f"{group.group_name} {members}".encode()).hexdigest()[:16]
    own = place, group.rank()  # In torch's tests ranks may be threads of one process.
    _counts[own] = _counts.get(own, 0) + 1
    store = PrefixStore(f"prophet/{place}/{_counts[own]}", _get_default_store())
    return meet(store, group.rank(), group.size(), text, patience)


def nobody() -> None:
    """Return no rank."""


def meet(store: Store, rank: int, ranks: int, text: str, patience: Patience) -> tuple[list[str], Store]:
    """Return each rank's text, by rank, and a part of the store that no earlier life has used.

    In one life each rank calls this once in a store. Raises SilentRank, and the store's error if it is gone.
    """
    name, said = _lead(store, ranks, text, patience) if rank == 0 else _follow(store, rank, text, patience)
    return said, PrefixStore(name, store)


def end_together() -> None:
    """Wait until all ranks are about to end, for a few seconds. torch may still connect another rank to this one, which
    would report a lost connection, and the store goes with the job's first rank.
    """
    store, rank = PrefixStore("prophet/end", _get_default_store()), dist.get_rank()
    ranks = [str(each) for each in range(dist.get_world_size())]
    with contextlib.suppress(RuntimeError):
        store.set(f"here/{rank}", "")
        wait_until(lambda: store.check([f"here/{each}" for each in ranks]), READ_LIMIT_S)
        store.set(f"gone/{rank}", "")
        if rank == 0:
            wait_until(lambda: store.check([f"gone/{each}" for each in ranks[1:]]), READ_LIMIT_S)


def met() -> int:
    """Return how many meetings this process has joined; alike on ranks that are in the same groups."""
    return sum(_counts.values())


@dataclass(frozen=True)
class Patience:
    """Patience with other ranks. Calls `tell(rank)` once if a rank is silent for AGREE_LIMIT_S. Gives up after
    `limit_s` seconds, or once `lost()` returns a rank that has ended.
    """

    limit_s: float
    tell: Callable[[int], None]
    lost: Callable[[], int | None] = nobody

    def until(self, there: Callable[[], bool], silent: Callable[[], int | None], more_s: float = 0.0) -> None:
        """Wait until `there()`, `more_s` beyond the limit at most. `silent()` is the awaited rank, if known. Raises
        SilentRank.
        """
        there = unless_lost(there, self.lost)
        if wait_until(there, min(AGREE_LIMIT_S, self.limit_s)):
            return
        if self.limit_s > AGREE_LIMIT_S and (rank := silent()) is not None:
            self.tell(rank)
        if not wait_until(there, max(self.limit_s - AGREE_LIMIT_S, 0.0) + more_s):
            raise SilentRank(silent() or 0)


def _lead(store: Store, ranks: int, text: str, patience: Patience) -> tuple[str, list[str]]:
    name = uuid.uuid4().hex
    store.set("first", name)
    answers = [f"{name}/{rank}" for rank in range(1, ranks)]

    def silent() -> int | None:
        return next((rank for rank, key in enumerate(answers, 1) if not store.check([key])), None)

    late: SilentRank | None = None
    try:
        patience.until(lambda: store.check(answers), silent)
    except SilentRank as error:
        late = error
    there = [json.loads(store.get(key)) for key in answers if store.check([key])]
    said = [text, *(other for _, other in there)]
    for other, _ in there:
        store.set(other, json.dumps(said if late is None else vars(late)))
    if (late is not None and not late.lost) or len(set(said)) > 1:  # All may see a loss by themselves.
        wait_until(lambda: store.check([f"{other}/read" for other, _ in there]), READ_LIMIT_S)
    if late is not None:
        raise late
    return name, said


def _follow(store: Store, rank: int, text: str, patience: Patience) -> tuple[str, list[str]]:
    own = uuid.uuid4().hex
    name = b""

    def answered() -> bool:
        nonlocal name
        if not store.check(["first"]):
            return False
        if (now := store.get("first")) != name:  # A name that is replaced was an earlier life's.
            name = now
            store.set(f"{name.decode()}/{rank}", json.dumps([own, text]))
        return store.check([own])

    patience.until(answered, lambda: None if name else 0, READ_LIMIT_S)
    said: list[str] | dict[str, Any] = json.loads(store.get(own))
    store.set(f"{own}/read", "")
    if isinstance(said, dict):
        raise SilentRank(**said)
    return name.decode(), said


def unless_lost(there: Callable[[], bool], lost: Callable[[], int | None]) -> Callable[[], bool]:
    """Return a condition that is `there()`, but raises SilentRank while that is False and `lost()` returns a rank."""
    next_s = time.monotonic() + LOST_LOOK_S

    def look() -> bool:
        nonlocal next_s
        if there():
            return True
        if time.monotonic() < next_s:
            return False
        next_s = time.monotonic() + LOST_LOOK_S
        rank = lost()
        if rank is not None and not there():  # It may have ended after its answer.
            raise SilentRank(rank, lost=True)
        return False

    return look


def wait_until(there: Callable[[], bool], limit_s: float) -> bool:
    """Poll `there()` for `limit_s` seconds at most. Return True as soon as it does; False if it never did."""
    until_s = time.monotonic() + limit_s
    pause_s = SHORTEST_PAUSE_S
    while not there():
        if time.monotonic() >= until_s:
            return False
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
    return True


class Meeting(Store):
    """Part of a `store` where the ranks of a new group find each other, without waiting for a rank that has failed."""

    _FAILED = "failed"

    def __init__(self, store: Store, lost: Callable[[], int | None] = nobody) -> None:
        super().__init__()
        self._store = store
        self._lost = lost

    def set(self, key: str, value: bytes) -> None:  # type: ignore[override]
        self._store.set(key, value)  # type: ignore[arg-type]

    def get(self, key: str) -> bytes:
        """Return the value of a key that exists: the caller has waited for it."""
        return self._store.get(key)

    def wait(self, keys: Sequence[str], timeout: datetime.timedelta = datetime.timedelta.max) -> None:  # type: ignore[override]
        """Wait until all keys exist. Raises ConnectionError, with the reason, if a rank has failed, and SilentRank if
        one was lost.
        """

        def there() -> bool:
            if self._store.check([self._FAILED]):
                raise ConnectionError(self._store.get(self._FAILED).decode())
            return self._store.check(list(keys))

        if not wait_until(unless_lost(there, self._lost), min(CONNECT_LIMIT_S, timeout.total_seconds())):
            raise TimeoutError(f"another rank did not connect within {CONNECT_LIMIT_S:g} s")

    def fail(self, rank: int, error: Exception) -> None:
        """Report that this `rank` of the group has failed. Raises ConnectionError if another failed first."""
        if self._store.check([self._FAILED]):
            raise ConnectionError(self._store.get(self._FAILED).decode())
        (why, *_) = str(error).splitlines() or [type(error).__name__]
        self._store.set(self._FAILED, f"rank {rank} cannot: {why}")
