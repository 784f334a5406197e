"""Fixtures of the front end's tests: a job with Prophet's hook on, over a network that the test drives."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.front_end import forget
from support.torch_network import Network, install


@pytest.fixture(params=[False, True], ids=["oldest-first", "newest-first"])
def any_order(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Network]:
    yield from _network(Network(request.param), monkeypatch)


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> Iterator[Network]:
    yield from _network(Network(), monkeypatch)


def _network(network: Network, monkeypatch: pytest.MonkeyPatch) -> Iterator[Network]:
    forget()
    install(monkeypatch, network, fusion=False)
    yield network
    network.shutdown()


@pytest.fixture(autouse=True)
def later_in_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages come every RECUT_ROUNDS rounds, as they do once a job's first rounds are over."""
    monkeypatch.setattr("prophet_scheduler.core.cut.EARLY_ROUNDS", 0)
