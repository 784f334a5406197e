"""The narrow link of a cluster, by hand."""

from __future__ import annotations

from typing import Any

import pytest

from prophet_scheduler.engines.topology import ALL_REDUCE
from prophet_scheduler.lab.cluster_config import ClusterConfig
from prophet_scheduler.lab.narrow_link import narrow_link, seconds_per_bit


def cluster(bandwidth: Any, workers: int = 2, servers: int = 1) -> ClusterConfig:
    return ClusterConfig.model_validate({"workers": workers, "servers": servers, "bandwidth": bandwidth})


@pytest.mark.parametrize(
    ("bandwidth", "workers", "servers", "link"),
    [
        ("250mbit", 2, 1, "worker uplink"),  # only the workers are shaped
        ({"default": "250mbit", "server0": "250mbit"}, 2, 1, "server"),  # equal rates: two workers go through it
        ({"default": "200mbit", "server0": "2gbit"}, 2, 1, "worker uplink"),
        ({"default": "200mbit", "server0": "400mbit"}, 2, 1, "worker uplink"),  # a tie
        ({"default": "250mbit", "server0": "400mbit", "server1": "400mbit"}, 2, 2, "worker uplink"),
        ({"default": "250mbit", "server0": "400mbit", "server1": "400mbit"}, 4, 2, "server"),
        ({"default": "250mbit", "server0": "10mbit"}, 2, 2, "worker uplink"),  # the other server takes all
        ({"server0": "1gbit"}, 2, 1, "server"),
        ({"worker1": "1gbit"}, 2, 1, "worker uplink"),
        ({"scheduler": "1mbit"}, 2, 1, None),
        ([{"at_s": 0, "rate": "250mbit"}, {"at_s": 9, "rate": "1gbit"}], 2, 1, "worker uplink"),
    ],
)
def test_narrow_link_with_servers(bandwidth: Any, workers: int, servers: int, link: str | None) -> None:
    assert narrow_link(cluster(bandwidth, workers, servers)) == link


def test_narrow_link_of_all_reduce() -> None:
    shared = {"default": "250mbit", "server0": "250mbit"}
    assert narrow_link(cluster(shared), ALL_REDUCE) == "worker uplink"
    assert narrow_link(cluster({"server0": "1mbit"}), ALL_REDUCE) is None


def test_seconds_per_bit() -> None:
    seconds = seconds_per_bit(cluster({"default": "200mbit", "worker1": "100mbit", "server0": "800mbit"}, workers=4))
    assert seconds == {"worker uplink": pytest.approx(1 / 100e6), "server": pytest.approx(4 / 800e6)}
    around = seconds_per_bit(cluster("100mbit", workers=4), ALL_REDUCE)
    assert around["worker uplink"] == pytest.approx(1.5 / 100e6)  # 2 (p-1)/p
