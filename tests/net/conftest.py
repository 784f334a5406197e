"""The networks of each module in this folder: a module's LINK_BPS is its workers' limit in bits per second, or None."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from prophet_scheduler.lab.testbed import Testbed
from support.apart import SPECS
from support.roles import network, nodes


@pytest.fixture(scope="module")
def testbed(request: pytest.FixtureRequest) -> Iterator[Testbed]:
    pytest.importorskip("byteps")
    with network(nodes(request.module.LINK_BPS)) as testbed:
        yield testbed


@pytest.fixture(scope="module")
def beside(request: pytest.FixtureRequest) -> Iterator[Testbed]:
    """Another one alike, for a job that runs at the same time."""
    pytest.importorskip("byteps")
    with network(nodes(request.module.LINK_BPS)) as testbed:
        yield testbed


@pytest.fixture(scope="module")
def apart() -> Iterator[Testbed]:
    """The network of asynchronous jobs with a coordinator (support/apart.py)."""
    pytest.importorskip("byteps")
    with network(SPECS) as testbed:
        yield testbed
