"""Real jobs of two ranks that Prophet only watches: the same bits, torch's own collectives, and what it says."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")

from plugins.torch.test_watching import LIMIT_S, eventually, job
from prophet_scheduler.cli.top import ask_all, statuses
from prophet_scheduler.lab.records import read_status
from scripts.ranks import Ranks
from support.forks import run_ranks
from support.programs import clean_environ, torchrun_variables
from tools.ports import free_port

CHECKOUT = Path(__file__).parents[3]
SCRIPTS = CHECKOUT / "tests" / "scripts"
SLEPT_JOB = CHECKOUT / "tools" / "slept_job.py"
OBSERVE = {"PROPHET_SCHEDULER": "observe"}
MODULES = ("prophet_ddp.takeover", "prophet_ddp.observing")


@pytest.fixture
def folder() -> Iterator[Path]:
    """With a short name, as sockets need it."""
    with tempfile.TemporaryDirectory(prefix="prophet-") as name:
        yield Path(name)


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[Ranks, Ranks]]:
    """Starters of ranks without Prophet, and of watched ones."""
    with Ranks({}, ("torch", "numpy")) as plain, Ranks(OBSERVE, ("torch", "numpy", *MODULES)) as watched:
        yield plain, watched


DDP = "ddp_plain", "ddp_unused", "ddp_fall_back_own_hook", "ddp_dropped"


@pytest.mark.parametrize("name", [*DDP, "fsdp_modules", "fsdp_replicate", "fsdp_steps"])
def test_a_script_ends_with_the_bits_that_it_has_without(
    servers: tuple[Ranks, Ranks], tmp_path: Path, name: str
) -> None:
    plain, watched = (
        ranks.run(SCRIPTS / f"{name}.py", tmp_path / place, LIMIT_S, settings={"PROPHET_QUIET": "0"})
        for ranks, place in zip(servers, ("plain", "watched"), strict=True)
    )
    assert watched == plain
    first, second = ((tmp_path / "watched" / f"rank{rank}" / "log").read_text() for rank in range(2))
    assert name not in DDP or "Prophet: observes DistributedDataParallel over gloo, 2 ranks, " in first
    assert "waits for the network" in first or "too few of them timed" in first
    assert "no longer" not in first and "cannot" not in first and "does not observe" not in first
    assert "Prophet" not in second


def logs_of(folder: Path, command: list[str], **settings: str) -> list[str]:
    """Run two watched ranks to their end. Return what each has said."""
    port, places = free_port(), [folder / f"rank{rank}" for rank in range(2)]
    environ = clean_environ() | {**OBSERVE, "PROPHET_QUIET": "0", **settings}
    return run_ranks(
        {place: (command, environ | torchrun_variables(rank, 2, port)) for rank, place in enumerate(places)}, LIMIT_S
    )


@pytest.mark.parametrize("way", ["fsdp2", "kept", "replicate"])
def test_a_job_of_fsdp2_is_told_what_it_waits_for_and_what_would_help(tmp_path: Path, way: str) -> None:
    status = tmp_path / "status.json"
    options = ["--bytes", "400000", "--forward", "0.02", "--backward", "0.04", "--iterations", "20"]
    log, _ = logs_of(tmp_path, [str(SLEPT_JOB), way, *options], PROPHET_STATUS_OUT=str(status))
    said = [line for line in log.splitlines() if line.startswith("Prophet: ")]
    assert said[0].startswith("Prophet: observes FSDP2 over gloo, 2 ranks, 400"), said
    assert "waits for the network" in said[1]
    seen = read_status(status).observed
    assert seen is not None and seen.times is not None
    assert seen.shards == (1 if way == "replicate" else 2) and seen.keep == (way != "fsdp2")
    assert sum(seen.gradient_bytes) == pytest.approx(400_000, rel=0.01)
    assert seen.times.backward_s > 0.04 and seen.times.iteration_s > 0.06, "it sleeps so long"
    assert list(seen.generation_s) == sorted(seen.generation_s, reverse=True)


def test_a_failure_of_watching_is_one_warning_and_the_job_goes_on(tmp_path: Path) -> None:
    script = tmp_path / "broken.py"
    script.write_text(
        "import runpy\n"
        "from prophet_scheduler.learn.observed import ShardedIterations\n"
        "def broken(*what): raise RuntimeError('out of order')\n"
        "ShardedIterations.waited = broken\n"
        f"runpy.run_path({str(SLEPT_JOB)!r}, run_name='__main__')\n"
    )
    options = ["--bytes", "40000", "--forward", "0.01", "--backward", "0.02", "--iterations", "6"]
    logs = logs_of(tmp_path, [str(script), "fsdp2", *options])
    assert [log.count("Prophet: no longer observes this job: RuntimeError: out of order") for log in logs] == [1, 1]
    assert '"mean_s"' in logs[0]


def test_a_running_job_says_how_long_it_waits(folder: Path) -> None:
    with job(folder, {**OBSERVE, "PROPHET_QUIET": "0"}, free_port()) as ranks:

        def seen() -> bool:
            asked = statuses(ask_all([folder / "prophet"]))
            return any(each.agent.observed is not None and each.agent.observed.times is not None for each in asked)

        assert eventually(seen, folder)
        (folder / "stop").touch()
        assert [rank.wait(LIMIT_S) for rank in ranks] == [0, 0]
    log = (folder / "rank0" / "log").read_text()
    assert "of which" in log and "waits for the network" in log
    # How long a job on one machine waits depends on what else runs there.
    assert "all ranks are on one machine" in log or "no network could make this job" in log
