"""Tests of how ranks meet in a store that an earlier life has used, and that none waits for one that has failed."""

from __future__ import annotations

import datetime
import functools
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytest.importorskip("torch")
import torch.distributed as dist

from prophet_ddp import meeting
from prophet_ddp.meeting import Meeting, Patience, SilentRank, agree
from prophet_ddp.wide_gloo import wide_group

LIMIT_S = 60.0
HASH_STORE: Any = vars(dist)["HashStore"]


class Group:
    """Process group with what `agree` asks of one."""

    group_name = "0"

    def __init__(self, rank: int, ranks: int) -> None:
        self._rank, self.ranks = rank, ranks

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self.ranks


class Job:
    """Lives of some ranks, one after another, as threads that share a store."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store = HASH_STORE()
        self.told: list[int] = []
        monkeypatch.setattr(meeting, "_get_default_store", lambda: self.store)
        monkeypatch.setattr(dist, "get_process_group_ranks", lambda group: list(range(group.ranks)))
        # Ranks are processes, which count for themselves: here each life finds the keys of the one before.
        monkeypatch.setattr(meeting, "_counts", _Never())

    def life(self, *texts: str, of: int = 0, limit_s: float = LIMIT_S) -> list[Any]:
        """Return what each rank got, or SilentRank; those of `of` ranks that say nothing are left out."""

        def rank(number: int) -> Any:
            group: Any = Group(number, of or len(texts))
            lost = functools.partial(vars(meeting)["ended_rank"], group)
            try:
                return agree(group, texts[number], Patience(limit_s, self.told.append, lost))
            except SilentRank as error:
                return error

        with ThreadPoolExecutor(len(texts)) as pool:
            return list(pool.map(rank, range(len(texts))))


class _Never(dict[str, int]):
    def __setitem__(self, place: str, count: int) -> None:
        super().__setitem__(place, 1)

    def get(self, place: str, default: Any = None) -> Any:
        return 0


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Job:
    return Job(monkeypatch)


@pytest.mark.parametrize("ranks", [2, 5])
def test_no_life_hears_what_an_earlier_one_has_said(job: Job, ranks: int) -> None:
    for life in range(5):
        texts = [f"rank {rank} of life {life}" for rank in range(ranks)]
        for said, _ in job.life(*texts):
            assert said == texts


def test_a_part_of_the_store_belongs_to_one_life_alone(job: Job) -> None:
    for _ in range(2):
        first, second = (store for _, store in job.life("a", "a"))
        assert not first.check(["0"])
        first.set("0", "address")
        assert second.get("0") == b"address"


def test_a_life_that_ended_while_it_met_is_as_good_as_none(job: Job) -> None:
    assert isinstance(job.life("a", of=2, limit_s=0.05)[0], SilentRank)
    assert [said for said, _ in job.life("b", "c")] == [["b", "c"]] * 2


def test_ranks_that_differ_hear_each_other(job: Job) -> None:
    assert [said for said, _ in job.life("a", "b", "a")] == [["a", "b", "a"]] * 3


def test_all_name_the_rank_that_is_silent_and_say_so_before(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "AGREE_LIMIT_S", 0.1)
    errors = job.life("a", "b", of=3, limit_s=0.2)
    assert [error.rank for error in errors] == [2, 2]
    assert job.told == [2]


def test_who_waits_sees_a_rank_end_and_tells_who_has_come(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "LOST_LOOK_S", 0.0)
    # The first rank sees it once the other has come.
    monkeypatch.setattr(
        meeting, "ended_rank", lambda group: 2 if job.store.num_keys() > 1 and not group.rank() else None
    )
    errors = job.life("a", "b", of=3)
    assert all(error.lost and error.rank == 2 for error in errors)
    assert not job.told


def test_who_connects_does_not_wait_for_a_rank_that_has_failed() -> None:
    store = HASH_STORE()
    Meeting(store).fail(2, OSError("no descriptors are left\nand more"))
    with pytest.raises(ConnectionError, match=r"^rank 2 cannot: no descriptors are left$"):
        Meeting(store).wait(["0"], datetime.timedelta(seconds=LIMIT_S))
    with pytest.raises(ConnectionError, match=r"^rank 2 cannot: no descriptors are left$"):
        Meeting(store).fail(0, OSError("closed by peer"))


def test_a_rank_without_descriptors_says_so_before_others_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    store, timeout = HASH_STORE(), datetime.timedelta(seconds=LIMIT_S)
    with monkeypatch.context() as here:
        here.setattr("resource.getrlimit", lambda _: (3, 3))
        with pytest.raises(ConnectionError, match="file descriptors are left of 3 "):
            wide_group(store, 1, 2, timeout)
    with pytest.raises(ConnectionError, match=r"rank 1 cannot: .* file descriptors are left of 3 "):
        wide_group(store, 0, 2, timeout)
