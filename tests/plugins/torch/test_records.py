"""Tests of what the ranks of a DDP job leave: status, events and profile, as workers of BytePS do."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("torch")

from prophet_ddp.environment import environ_of_rank
from prophet_ddp.records import ModuleRecord, Records
from prophet_scheduler.core.cut import Cut
from prophet_scheduler.core.event_record import load_record
from prophet_scheduler.core.events import EVENT_DTYPE, EventKind, QueueKind
from prophet_scheduler.core.plan import Plan
from prophet_scheduler.core.settings import Settings
from prophet_scheduler.lab.records import read_status
from prophet_scheduler.lab.report.from_run import pair_events
from prophet_scheduler.models.profiles import load_profile
from prophet_scheduler.watch.status import Predicted
from support.forks import run_ranks
from support.programs import clean_environ, torchrun_variables
from tools.ports import free_port

PROGRAM = Path(__file__).with_name("training_cases.py")
LIMIT_S = 400


def job(folder: Path, until: str = "planned", ranks: int = 2, cache: str = "off") -> None:
    """Runs `ranks` ranks to their end. What they print is beside the folder."""
    files = {"STATUS": "status.json", "EVENTS": "events.npz", "PROFILE": "profile.json"}
    settings = {f"PROPHET_{name}_OUT": str(folder / file) for name, file in files.items()}
    port = free_port()
    environ = clean_environ() | settings | {"PROPHET_SCHEDULER": "prophet", "PROPHET_CACHE": cache}
    command = [str(PROGRAM), until]
    own = [(command, environ | torchrun_variables(rank, ranks, port)) for rank in range(ranks)]
    run_ranks({folder.with_name(f"{folder.name}-rank{rank}"): each for rank, each in enumerate(own)}, LIMIT_S)


def test_every_rank_leaves_a_status_and_the_one_that_learns_the_rest(tmp_path: Path) -> None:
    job(tmp_path)
    names = {"status.json", "status.1.json", "events.npz", "profile.json"}
    assert {path.name for path in tmp_path.iterdir()} == names
    first, second = read_status(tmp_path / "status.json"), read_status(tmp_path / "status.1.json")
    assert (first.policy, first.stepped_aside, first.arena) == ("prophet", "", True)
    assert first.plans >= 1 and first.network is not None and first.agent_cpu_s > 0
    assert (second.plans, second.network) == (0, None)
    assert second.cut == first.cut != () and second.recuts == first.recuts
    record = load_record(tmp_path / "events.npz")
    assert record.agreed and record.plans == {}
    transfers = pair_events(record.events)
    assert transfers and {transfer.queue for transfer in transfers} == {QueueKind.PUSH}
    assert all(transfer.added_s <= transfer.start_s <= transfer.finish_s for transfer in transfers)
    assert load_profile(tmp_path / "profile.json").total_bytes == 6 * (64 * 64 + 64) * 4


def test_the_next_start_begins_with_what_was_learned(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    for began_warm, name in ((False, "first"), (True, "second")):
        folder = tmp_path / name
        folder.mkdir()
        job(folder, cache=str(cache))
        assert read_status(folder / "status.json").began_warm is began_warm
        assert not read_status(folder / "status.1.json").began_warm, "it decides nothing"
        assert len(list(cache.iterdir())) == 1


def test_a_module_that_goes_back_to_torchs_reducer_is_said_on_every_rank(tmp_path: Path) -> None:
    job(tmp_path, "fallback")
    for name in ("status.json", "status.1.json"):
        assert "own_hook" in read_status(tmp_path / name).stepped_aside


def records(folder: Path) -> Records:
    """Return the records of a process that was asked for a status and for events."""
    thread: Any = SimpleNamespace(busy_s=0.25)
    made = Records(thread)
    made._settings = Settings("p3", status_out=folder / "s.json", events_out=folder / "e.npz")
    return made


def some_events(times: Sequence[float]) -> NDArray[Any]:
    rows = [(time, 0, 8, 0, QueueKind.PUSH, EventKind.ADD, 0) for time in times]
    return np.array(rows, EVENT_DTYPE)


def test_the_first_module_counts_and_outlives_itself(tmp_path: Path) -> None:
    made, first, second = records(tmp_path), ModuleRecord(), ModuleRecord()
    first.drain = lambda: some_events([3.0])
    made.follow(first)
    made.follow(second)
    first.took_up(Cut.uniform(4096))
    first.took_up(Cut.uniform(4096))
    second.took_up(Cut.uniform(1 << 20))
    assert (first.recuts, first.last_recut_s) == (0, None)
    first.planned(Plan(cut=Cut.uniform(8192)), "predicted", Predicted(0.75))
    assert (made.status().recut_reason, made.status().recut_predicted_s) == ("", None), "wanted, and not in force yet"
    first.took_up(Cut.uniform(8192))
    first.keep(some_events([1.0, 2.0]))
    made.write()
    status = json.loads((tmp_path / "s.json").read_text(encoding="utf-8"))
    assert (status["policy"], status["recuts"], status["recut_reason"], status["plans"]) == ("p3", 1, "predicted", 1)
    assert (status["cut"], status["recut_predicted_s"]) == ([{"start": 0, "block_bytes": 8192}], 0.75)
    assert status["agent_cpu_s"] == 0.25
    assert load_record(tmp_path / "e.npz").events["time_s"].tolist() == [1.0, 2.0, 3.0], "and those of the last moment"


def test_a_rank_that_decides_nothing_has_no_events(tmp_path: Path) -> None:
    made = records(tmp_path)
    made.follow(ModuleRecord())
    made.write()
    assert [path.name for path in tmp_path.iterdir()] == ["s.json"]


def test_only_the_first_module_says_why_it_has_torchs_reducer(tmp_path: Path) -> None:
    made, first = records(tmp_path), ModuleRecord()
    made.follow(first)
    made.stepped_aside("a second module makes sparse gradients")
    assert made.status().stepped_aside == ""
    made.stepped_aside("join() is used", first)
    assert made.status().stepped_aside == "join() is used"
    other = records(tmp_path)
    other.stepped_aside("it has a device mesh")
    other.follow(ModuleRecord())
    assert other.status().stepped_aside == "it has a device mesh"


def test_the_first_module_alone_says_why_it_was_given_back(tmp_path: Path) -> None:
    made, first = records(tmp_path), ModuleRecord()
    made.follow(first)
    made.given_back("of no use", ModuleRecord())
    assert made.status().given_back == ""
    made.given_back("torch's reducer is faster", first)
    assert (made.status().given_back, made.status().stepped_aside) == ("torch's reducer is faster", "")


@pytest.mark.parametrize(
    ("environ", "number"),
    [
        ({"LOCAL_RANK": "1", "RANK": "5"}, "1"),
        ({"LOCAL_RANK": "1"}, "1"),
        ({}, "5"),
        ({"RANK": "5"}, "5"),
        ({"LOCAL_RANK": "", "RANK": "5"}, "5"),
        ({"LOCAL_RANK": "0", "RANK": "0"}, "5"),
    ],
    ids=["torchrun", "a launcher of one's own", "spawned", "with a rank", "empty", "spawned by what torchrun started"],
)
def test_a_rank_is_told_from_others_of_its_machine(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], number: str
) -> None:
    for name in ("LOCAL_RANK", "RANK"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.get_rank", lambda: 5)
    assert environ_of_rank()["LOCAL_RANK"] == number
