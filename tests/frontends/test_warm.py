"""Warm start at its edge: the files, and what a start makes of them."""

from __future__ import annotations

import functools
import json
import logging
import math
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from prophet_byteps.place import where_it_runs
from prophet_scheduler.core.cut import Cut, learning_cut
from prophet_scheduler.core.network import Network
from prophet_scheduler.core.profile import GradientProfile, Profile
from prophet_scheduler.frontends.warm import PROVED_S, WarmStart, remove_oldest
from prophet_scheduler.session.kept import Kept, kept_to_json

SIZES = [4096] * 10 + [1 << 20] * 8
PROFILE = Profile("kept", (GradientProfile("gradient0", 8, 0.2), GradientProfile("gradient1", 8, 0.1)), (0, 1))
NETWORK = Network(1e8, 0.0001, 0.001)
CHOSEN = Cut.uniform(2 << 20)


def learning(sizes: Sequence[int]) -> Cut:
    return learning_cut(sum(sizes))


def start(folder: Path | None, profile: Profile | None = None, **where: str) -> WarmStart:
    return WarmStart(folder, where, learning, profile)


def test_the_next_start_begins_with_what_was_kept(tmp_path: Path) -> None:
    folder = tmp_path / "not" / "there"
    first = start(folder)
    assert first.first_cut(SIZES) == learning(SIZES)
    assert first.take() is None
    first.keep(Kept(PROFILE, NETWORK, CHOSEN))
    second = start(folder)
    assert second.first_cut(SIZES) == CHOSEN
    assert second.take() == Kept(PROFILE, NETWORK, CHOSEN)
    assert second.take() is None
    assert second.first_cut(SIZES) == CHOSEN, "asked again after an elastic resume"
    assert second.first_cut(SIZES[1:]) == learning(SIZES[1:]), "another optimizer's"
    assert [path.suffix for path in folder.iterdir()] == [".json"]


def test_another_job_begins_with_nothing(tmp_path: Path) -> None:
    first = start(tmp_path, workers="2")
    first.first_cut(SIZES)
    first.keep(Kept(PROFILE, NETWORK, CHOSEN))
    for other, sizes in ((start(tmp_path, workers="3"), SIZES), (start(tmp_path, workers="2"), SIZES[::-1])):
        assert other.first_cut(sizes) == learning(sizes)
        assert other.take() is None


def test_a_job_that_never_left_the_learning_cut_leaves_none(tmp_path: Path) -> None:
    first = start(tmp_path)
    first.keep(Kept(PROFILE, NETWORK, learning(SIZES)))
    assert list(tmp_path.iterdir()) == [], "nothing is known of the job before it asks"
    first.first_cut(SIZES)
    first.keep(Kept(PROFILE, NETWORK, learning(SIZES)))
    second = start(tmp_path)
    assert second.first_cut(SIZES) == learning(SIZES)
    assert second.take() == Kept(PROFILE, NETWORK, None)


def test_without_a_folder_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    first = start(None)
    first.first_cut(SIZES)
    first.keep(Kept(PROFILE, NETWORK, CHOSEN))
    assert list(tmp_path.iterdir()) == []


def absurd(**over: object) -> str:
    return json.dumps({**json.loads(kept_to_json(Kept(PROFILE, NETWORK, CHOSEN))), **over})


@pytest.mark.parametrize(
    "text",
    [
        "",
        absurd(network={"bandwidth": 1e-300, "overhead_s": 0.0, "ack_delay_s": 0.0}),
        absurd(network={"bandwidth": 1e300, "overhead_s": 0.0, "ack_delay_s": 0.0}),
        absurd(network={"bandwidth": 1e8, "overhead_s": math.inf, "ack_delay_s": 0.0}),
        absurd(network={"bandwidth": 1e8, "overhead_s": 0.0, "ack_delay_s": 1e30}),
        absurd(profile=[[0, 8, 1e300, 0.0]]),
        absurd(profile=[[0, 8, 0.1, math.nan]]),
        absurd(profile=[[0, 10**30, 0.1, 0.0]]),
        absurd(profile=[[2**32, 8, 0.1, 0.0]]),
        absurd(profile=[[-1, 8, 0.1, 0.0]]),
        absurd(profile=[[1, 8, 0.2, 0.0], [1, 8, 0.1, 0.0]]),
        absurd(profile=[[]]),
        absurd(cut=[[0, 1 << 60]]),
        "[" * 5000,
        *("{", "\0\1", '{"schema": 9}'),
    ],
)
def test_what_is_broken_or_absurd_is_one_warning(text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = start(tmp_path)
    first.first_cut(SIZES)
    first.keep(Kept(PROFILE, NETWORK, CHOSEN))
    (path,) = tmp_path.iterdir()
    path.write_text(text)
    with caplog.at_level(logging.WARNING, "prophet_scheduler"):
        for _ in range(2):
            again = start(tmp_path)
            assert again.first_cut(SIZES) == learning(SIZES) and again.take() is None
    (record,) = caplog.records
    assert f"{path} cannot be used" in record.getMessage() and list(tmp_path.iterdir()) == []
    again.keep(Kept(PROFILE, NETWORK, CHOSEN))
    assert start(tmp_path).first_cut(SIZES) == CHOSEN, "and it is written anew"


def test_a_folder_that_cannot_be_written_is_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("no folder")
    job = start(tmp_path / "file")
    with caplog.at_level(logging.WARNING, logger="prophet_scheduler"):
        assert job.first_cut(SIZES) == learning(SIZES)
        caplog.clear()
        job.keep(Kept(PROFILE, NETWORK, CHOSEN))
        job.keep(Kept(PROFILE, NETWORK, CHOSEN))
    assert len(caplog.records) == 1


def learned(enough: bool, cut: Cut | None) -> Kept | None:
    return Kept(PROFILE, NETWORK, cut) if enough else None


def test_a_cut_is_kept_once_it_has_been_in_force_for_a_while(tmp_path: Path) -> None:
    job = start(tmp_path)
    job.first_cut(SIZES)
    for second in range(200):
        cut = CHOSEN if second >= 100 else learning(SIZES)
        job.turn(float(second), cut, functools.partial(learned, second > 10))
        kept = start(tmp_path)
        kept.first_cut(SIZES)
        found = kept.take()
        assert (found is None) == (second < PROVED_S)
        assert (found is not None and found.cut == CHOSEN) == (second >= 100 + PROVED_S)


def test_the_oldest_files_go(tmp_path: Path) -> None:
    for number in range(9):
        path = tmp_path / f"{number}.json"
        path.write_text("{}")
        os.utime(path, (1000.0 + number, 1000.0 + number))
    (tmp_path / "something.else").write_text("")
    remove_oldest(tmp_path, 3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["6.json", "7.json", "8.json", "something.else"]


def test_a_given_profile_comes_before_a_kept_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = start(tmp_path)
    first.first_cut(SIZES)
    first.keep(Kept(PROFILE, NETWORK, CHOSEN))
    given = Profile("given", tuple(GradientProfile("g", size, 0.1) for size in SIZES))
    second = start(tmp_path, given)
    assert second.first_cut(SIZES) == CHOSEN
    kept = second.take()
    assert kept is not None and (kept.network, kept.cut) == (NETWORK, CHOSEN)
    assert [g.size_bytes for g in kept.profile.gradients] == SIZES
    with caplog.at_level(logging.WARNING, logger="prophet_scheduler"):
        third = start(tmp_path, PROFILE)
        third.first_cut(SIZES)
    assert "PROPHET_PROFILE_IN" in caplog.text
    assert third.take() == Kept(PROFILE, NETWORK, CHOSEN)


def test_workers_of_one_home_keep_files_of_their_own() -> None:
    places = [where_it_runs({"DMLC_WORKER_ID": worker, "BYTEPS_LOCAL_RANK": rank}) for worker in "01" for rank in "01"]
    assert len({tuple(sorted(place.items())) for place in places}) == 4
