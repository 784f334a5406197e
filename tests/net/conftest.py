"""The networks of each module in this folder: a module's LINK_BPS is its workers' limit in bits per second, or None."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from prophet_scheduler.lab.testbed import Testbed
from support.apart import SPECS
from support.roles import network, nodes


def _of_module(request: pytest.FixtureRequest) -> Iterator[Testbed]:
    pytest.importorskip("byteps")
    with network(nodes(request.module.LINK_BPS)) as testbed:
        yield testbed


testbed = pytest.fixture(scope="module")(_of_module)
beside = pytest.fixture(scope="module")(_of_module)
"""Another one alike, for a job that runs at the same time."""


@pytest.fixture(scope="module")
def apart() -> Iterator[Testbed]:
    """The network of asynchronous jobs with a coordinator (support/apart.py)."""
    pytest.importorskip("byteps")
    with network(SPECS) as testbed:
        yield testbed
