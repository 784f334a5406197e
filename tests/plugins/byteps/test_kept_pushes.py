"""The size of partitions for a program's own pushes, from what is kept of its last run."""

from __future__ import annotations

from pathlib import Path

import pytest

from prophet_byteps.learning import KeptPushes
from prophet_byteps.partition import LEARNING_BYTES
from prophet_scheduler.core.choice import Shape
from prophet_scheduler.core.cut import Cut
from prophet_scheduler.core.network import Network
from prophet_scheduler.policies import get_policy
from prophet_scheduler.session.kept import Kept
from support.profiles import resnet50

TWO = Shape(2, 1)
SLOW, FAST = Network(5e6, 1e-4, 1e-3), Network(1.25e8, 1e-4, 1e-3)


def kept(folder: Path | None, policy: str = "prophet", shape: Shape | None = TWO) -> KeptPushes:
    return KeptPushes(folder, {"here": "1"}, get_policy(policy), shape)


def test_it_follows_from_gradients_and_network_where_both_are_kept(tmp_path: Path) -> None:
    profile = resnet50(25_600_000, 13)
    assert kept(tmp_path).size() == LEARNING_BYTES, "nothing is kept"
    sizes = {}
    for network in (SLOW, FAST):
        kept(tmp_path).warm.keep(Kept(profile, network, Cut.uniform(65536)))
        sizes[network] = kept(tmp_path).size()
    assert sizes[SLOW] < LEARNING_BYTES < sizes[FAST]
    assert kept(tmp_path, shape=None).size() == LEARNING_BYTES, "nothing can be predicted"
    assert kept(tmp_path, policy="p3").size() == LEARNING_BYTES, "nor by a policy that does not"
    kept(tmp_path).warm.keep(Kept(profile))
    assert kept(tmp_path).size() == LEARNING_BYTES, "the network is not known"


def test_another_program_is_another_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept(tmp_path).warm.keep(Kept(resnet50(25_600_000, 13), SLOW))
    monkeypatch.setattr("sys.argv", ["train.py", "--model", "another"])
    assert kept(tmp_path).size() == LEARNING_BYTES


def test_nothing_that_is_kept_ends_a_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept(tmp_path).warm.keep(Kept(resnet50(25_600_000, 13), SLOW))
    for file in tmp_path.iterdir():
        file.write_text("{}")
    assert kept(tmp_path).size() == LEARNING_BYTES
    assert kept(None).size() == LEARNING_BYTES
    monkeypatch.setattr(KeptPushes, "_best", lambda self: 1 // 0)
    assert kept(tmp_path).size() == LEARNING_BYTES
