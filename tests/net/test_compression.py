"""A Gluon job that compresses in BytePS: with Prophet the bits are stock's, although its partitions are smaller."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from prophet_scheduler.lab.testbed import Testbed
from support.roles import WORKERS, run_job, side_by_side

pytest.importorskip("mxnet")
pytestmark = [pytest.mark.engine, pytest.mark.netns]

JOB = str(Path(__file__).with_name("jobs") / "mxnet_compressed.py")
PORT = 24200
LINK_BPS = 400e6


def weights(testbed: Testbed, folder: Path, port: int, settings: dict[str, str]) -> str:
    """The digest of what both workers learned."""
    # Without this variable BytePS 0.2.5.post15 makes no threads to compress in, and crashes.
    settings = {**settings, "BYTEPS_THREADPOOL_SIZE": "2"}
    ends = run_job(testbed, folder, port, (JOB,), dict.fromkeys(WORKERS, settings))
    if "BYTEPS_SCHEDULER" not in settings and all(end.status == -signal.SIGABRT for end in ends):
        # ReadyTable::SetReadyCount ends without the value it promises, which today's compilers take for "never ends".
        pytest.skip("this BytePS crashes when it compresses, with or without Prophet")
    assert [end.status for end in ends] == [0, 0], ends
    (digest,) = {line for end in ends for line in end.lines("weights")}
    return digest


def test_onebit_compression_has_stocks_bits(testbed: Testbed, beside: Testbed, tmp_path: Path) -> None:
    on = {"BYTEPS_SCHEDULER": "prophet"}
    stock, scheduled = side_by_side(
        lambda: weights(testbed, tmp_path / "stock", PORT, {}),
        lambda: weights(beside, tmp_path / "again", PORT, on),
    )
    assert scheduled == stock
    small = weights(testbed, tmp_path / "small", PORT + 1, {**on, "BYTEPS_PARTITION_BYTES": "131072"})
    assert small != stock, "the size of a partition is of no account"


@pytest.mark.parametrize("start", range(2))
def test_both_workers_learn_the_same_in_many_partitions(
    testbed: Testbed, beside: Testbed, tmp_path: Path, start: int
) -> None:
    """As released, three of four such jobs end with another model on each worker, also without Prophet."""
    many = {"BYTEPS_PARTITION_BYTES": "131072"}
    side_by_side(
        lambda: weights(testbed, tmp_path / "first", PORT + 2 + start, many),
        lambda: weights(beside, tmp_path / "second", PORT + 2 + start, many),
    )
