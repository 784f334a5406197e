"""Jobs that are suspended and resumed: rounds begin together again, and the weights are stock BytePS's."""

from __future__ import annotations

from pathlib import Path

import pytest

from prophet_scheduler.lab.testbed import Testbed
from support.roles import WORKERS, Ended, run_job, side_by_side

pytestmark = [pytest.mark.engine, pytest.mark.netns]

JOB = str(Path(__file__).with_name("jobs") / "elastic_job.py")
FORCED = str(Path(__file__).with_name("jobs") / "forced_recuts.py")
SUSPENSIONS = 2
PORT = 24300
LINK_BPS = 50e6
ON = {"BYTEPS_SCHEDULER": "prophet"}


def run(
    testbed: Testbed, folder: Path, port: int, replaced: str, settings: dict[str, str], by: tuple[str, ...] = ()
) -> list[Ended]:
    command = (*by, JOB, str(SUSPENSIONS), *filter(None, [replaced]))
    of_all = dict.fromkeys(WORKERS, settings)
    return run_job(testbed, folder, port, command, of_all, limit_s=240.0, lives=SUSPENSIONS + 1, forked=True)


class Stock:
    """Jobs of BytePS alone, each run once, beside the first job under Prophet that is compared with it."""

    def __init__(self, testbed: Testbed, beside: Testbed, folder: Path) -> None:
        self._testbed = testbed
        self._beside = beside
        self._folder = folder
        self._ends: dict[str, list[Ended]] = {}

    def and_prophet(
        self, folder: Path, port: int, replaced: str, by: tuple[str, ...] = ()
    ) -> tuple[list[Ended], list[Ended]]:
        """Ends of the workers without Prophet, and with it."""

        def scheduled() -> list[Ended]:
            return run(self._beside, folder, port, replaced, ON, by)

        if replaced in self._ends:
            return self._ends[replaced], scheduled()
        place = self._folder / f"replaced-{replaced}"
        self._ends[replaced], ends = side_by_side(lambda: run(self._testbed, place, port, replaced, {}), scheduled)
        return self._ends[replaced], ends


@pytest.fixture(scope="module")
def stock(testbed: Testbed, beside: Testbed, tmp_path_factory: pytest.TempPathFactory) -> Stock:
    return Stock(testbed, beside, tmp_path_factory.mktemp("stock"))


@pytest.mark.parametrize(("port", "replaced"), [(PORT, ""), (PORT + 1, "1")], ids=["same-workers", "replaced-worker"])
def test_a_resumed_job_learns_the_same(stock: Stock, tmp_path: Path, port: int, replaced: str) -> None:
    alone, scheduled = stock.and_prophet(tmp_path, port, replaced)
    assert [end.status for end in (*alone, *scheduled)] == [0] * 4, (alone, scheduled)
    assert not any(end.lines("Prophet") for end in scheduled)
    assert len({line for end in (*alone, *scheduled) for line in end.lines("weights")}) == 1


@pytest.mark.parametrize("replaced", ["0", "1"])
def test_a_worker_that_replaces_another_knows_no_cuts_of_before(stock: Stock, tmp_path: Path, replaced: str) -> None:
    """Its keys are the others' all the same, though they had several cuts before it came."""
    port = PORT + 2 + int(replaced)
    alone, forced = stock.and_prophet(tmp_path, port, replaced, (FORCED,))
    assert [end.status for end in (*alone, *forced)] == [0] * 4, [end.log[-3000:] for end in forced]
    assert not any(end.lines("Prophet") for end in forced)
    recuts = [int(line.split()[1]) for end in forced for line in end.lines("recuts")]
    assert min(recuts) > 0
    assert len({line for end in (*alone, *forced) for line in end.lines("weights")}) == 1
