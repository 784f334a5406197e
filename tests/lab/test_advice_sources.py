"""Tests of the situation from a profile with a network, and of each error in it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.network import Network
from prophet_scheduler.core.status import AgentStatus, HookStatus
from prophet_scheduler.lab.advice import Situation
from prophet_scheduler.lab.advice_sources import LinkOptions, of_profile
from support.profiles import resnet50

SMALL = resnet50(5_000_000)


def rate(situation: Situation, node: str = "worker0") -> float | None:
    return situation.cell.cluster.bandwidth.rate(node)


def test_options_describe_links() -> None:
    links = LinkOptions(1e9, 2e9, 0.005, workers=4, servers=2, workers_per_host=2)
    situation = of_profile(SMALL, "p3", links)
    assert (rate(situation), rate(situation, "server1")) == (1e9, 2e9)
    assert situation.cell.cluster.delay == 0.005
    assert (situation.contender.name, situation.workers_per_host) == ("p3", 2)
    assert rate(of_profile(SMALL, "prophet", LinkOptions(1e9)), "server0") is None


def test_default_policy(tmp_path: Path) -> None:
    assert of_profile(SMALL, None, LinkOptions(1e9)).contender.name == "ddp-gloo"
    status = AgentStatus("prophet", "", 0, 0.0, 1 << 20, None, network=Network(1e7))
    hook = HookStatus(True, "", 0, 0, 0, 0, 0)
    for name, written in (("ddp-prophet", status), ("prophet", dataclasses.replace(status, hook=hook))):
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(dataclasses.asdict(written)), encoding="utf-8")
        assert of_profile(SMALL, None, LinkOptions(), path).contender.name == name


def test_built_in_compute_times_are_noted() -> None:
    (line,) = of_profile(resnet50(), None, LinkOptions(1e9)).assumed
    assert line.startswith("computing takes 0.6 s backward, 0.3 s forward, as in the profile; ")
    mine = dataclasses.replace(SMALL, name="mine")
    assert not of_profile(mine, None, LinkOptions(1e9)).assumed


@pytest.mark.parametrize(("name", "workers", "share"), [("prophet", 4, 1.0), ("ddp-prophet", 4, 1.5)])
def test_rate_from_status_file(tmp_path: Path, name: str, workers: int, share: float) -> None:
    status = AgentStatus("prophet", "", 1, 0.1, 131072, None, network=Network(25e6))
    path = tmp_path / "status.json"
    path.write_text(json.dumps(dataclasses.asdict(status)))
    situation = of_profile(SMALL, name, LinkOptions(workers=workers), path)
    assert rate(situation) == pytest.approx(200e6 * share), "the rate of gradients, of which a ring sends more"
    path.write_text(json.dumps(dataclasses.asdict(dataclasses.replace(status, network=None))))
    with pytest.raises(UserError, match="measured no network; give --bandwidth"):
        of_profile(SMALL, name, LinkOptions(), path)


@pytest.mark.parametrize(
    ("links", "line"),
    [
        (LinkOptions(), "--bandwidth is missing"),
        (LinkOptions(1e9, workers_per_host=3), "--workers-per-host is 3, but there are only 2 workers"),
    ],
)
def test_impossible_cluster_is_one_line(links: LinkOptions, line: str) -> None:
    with pytest.raises(UserError, match=line):
        of_profile(SMALL, "prophet", links)
