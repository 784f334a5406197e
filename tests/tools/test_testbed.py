"""The page about the testbed's links, from made-up ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from prophet_scheduler.lab.testbed import RelayReport
from tools import kept, testbed
from tools.provenance import Provenance

RELAY = RelayReport(1000, 125_000_000, 3, 5e-5, 1.2e-4, 0.002, 0.05, True)
LINKS = [
    testbed.MeasuredLink(1e9, None, 5e-5, 992e6, 991e6, None),
    testbed.MeasuredLink(1e9, 0.005, 0.0102, 1e9, 988e6, RELAY),
    testbed.MeasuredLink(None, 0.0, 2e-4, 35e9, 40e9, RELAY),
]


def test_the_processor_of_a_relay_is_told_by_the_time_that_its_bytes_take() -> None:
    assert LINKS[0].processor_share is None
    assert LINKS[1].processor_share == pytest.approx(0.05 / 1.0), "125 MB take a second at 1 Gbit/s"


def test_the_page_has_a_row_for_each_link(tmp_path: Path) -> None:
    measured = Provenance("2026-01-02", "abc1234", "a processor", 2)
    kept.keep(tmp_path, testbed.NAME, testbed.Links, testbed.Links(LINKS, 1.25), measured)
    page = testbed.page(tmp_path)
    assert "Measured on 2026-01-02 at commit abc1234 on a processor, 2 cores. The load average was\n1.2 then" in page
    assert "| 1gbit | - | 0.050 | 992 | 991 | - | - | - | - | - |" in page
    assert "| 1gbit | 5ms | 10.200 | 1,000 | 988 | 50 | 120 | 2000 | 3 | 5.0% |" in page
    assert "| not shaped | 0s | 0.200 | 35,000 | 40,000 |" in page
