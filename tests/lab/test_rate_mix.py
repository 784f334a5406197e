"""Rates that are drawn: what a config says, what comes of it, and when."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from prophet_scheduler.lab.changes import changes
from prophet_scheduler.lab.cluster_config import RateMix
from prophet_scheduler.lab.results_view import describe_setting
from support.configs import REPLAY, changed, loaded
from support.fakes import Clock, FakeHost, Script

MIX: dict[str, Any] = {"shares": [1.0, 0.1], "chances": [0.5, 0.5], "period_s": 5, "until_s": 20, "seed": 3}


def test_draws_depend_on_seed_worker_and_period() -> None:
    mix = RateMix.model_validate({**MIX, "until_s": 500})
    drawn = mix.draw(4)
    assert drawn == mix.draw(4)
    assert [at_s for at_s, _, _ in drawn[:9]] == [0, 0, 0, 0, 5, 5, 5, 5, 10]
    assert [worker for _, worker, _ in drawn[:5]] == [0, 1, 2, 3, 0]
    slow = sum(share == 0.1 for _, _, share in drawn)
    assert 0.4 < slow / len(drawn) < 0.6
    assert RateMix.model_validate({**MIX, "until_s": 20}).draw(4) == drawn[:16]


def test_chances_are_normalized() -> None:
    mix = RateMix.model_validate({**MIX, "shares": [1.0, 0.5, 0.1], "chances": [0.3333333] * 3})
    assert len(mix.draw(2)) == 8


def test_links_follow_the_draw(tmp_path: Path) -> None:
    (cell,) = loaded(changed(REPLAY, "cluster.rate_mix", MIX), tmp_path).cells
    assert describe_setting(cell.setting) == "250mbit, rates x 1(50%) 0.1(50%)"
    cluster, host = cell.cluster, FakeHost(Clock(), lambda node, env: Script())
    assert cluster.rate_mix is not None
    made = list(changes(cluster, ["worker0", "worker1"], cast(Any, host), lambda node: None, lambda node: None))
    assert [change.at_s for change in made] == [0, 0, 5, 5, 10, 10, 15, 15]
    for change in made:
        change.make()
    rates = [(name, rate) for _, name, rate in host.bandwidths]
    assert rates == [(f"worker{worker}", share * 250e6) for _, worker, share in cluster.rate_mix.draw(2)]


def test_overlapping_traffic_at_two_nodes(tmp_path: Path) -> None:
    longer = {"node": "worker0", "until_s": 10, "rate": "80mbit"}
    shorter = {"node": "worker1", "from_s": 1, "until_s": 5, "rate": "80mbit"}
    cluster = loaded(changed(REPLAY, "cluster.traffic", [longer, shorter]), tmp_path).cells[0].cluster
    host: Any = FakeHost(Clock(), lambda node, env: Script())
    made = changes(cluster, ["worker0", "worker1"], host, lambda node: None, lambda node: None)
    assert [change.at_s for change in made] == [0, 1, 5, 10]
