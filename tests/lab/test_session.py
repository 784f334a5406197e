"""Cores of the workers of an experiment."""

from __future__ import annotations

from prophet_scheduler.lab.session import worker_cores


def test_every_worker_has_as_many_cores_and_none_is_shared() -> None:
    assert worker_cores([0, 1], 2) == {"worker0": (0,), "worker1": (1,)}
    assert worker_cores([2, 3, 5, 7, 8], 2) == {"worker0": (2, 3), "worker1": (5, 7)}
    assert worker_cores([4], 1) == {"worker0": (4,)}


def test_with_fewer_cores_than_workers_all_share_all() -> None:
    assert worker_cores([0, 1], 3) == {}
