"""Tests of the situation from a job's record: its values, its predictions, and each error of a record."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest

from prophet_scheduler.core.arena import at_pace, profile_under
from prophet_scheduler.core.cut import Cut, learning_cut
from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.network import Network
from prophet_scheduler.core.profile import Profile
from prophet_scheduler.core.status import AgentStatus
from prophet_scheduler.lab.advice import Situation, advise
from prophet_scheduler.lab.advice_sources import LinkOptions, of_record
from prophet_scheduler.lab.records import Suggestion, is_run
from prophet_scheduler.lab.workload import on_the_wire
from prophet_scheduler.policies.algorithms.collective import ArrivalOrder, ForwardOrder
from prophet_scheduler.policies.algorithms.sequence import iteration_s, make_sequence
from prophet_scheduler.watch.recorder import profile_row
from prophet_scheduler.watch.rows import (
    BeginRow,
    CutRow,
    EndRow,
    IterationsRow,
    NetworkRow,
    ProfileRow,
    RatesRow,
    RecordRow,
    TransfersRow,
    WaitsRow,
)
from prophet_scheduler.watch.status import WorkerName
from support.commands import Command
from support.job_records import write_job_record, write_rows
from support.profiles import resnet50

PROFILE = resnet50(25_600_000, backward_s=0.6, forward_s=0.3)
CUT = Cut.uniform(512 << 10)
NETWORK = Network(31.25e6, 0.2e-3)
AGENT = AgentStatus("prophet", "", 1, 0.1, 1 << 20, None, arena=True)
NOTHING = LinkOptions()


def took_s(profile: Profile = PROFILE, network: Network = NETWORK, barrier: bool = False) -> float:
    """Return the iteration time of an all-reduce job under Prophet, by the model of its own planner."""
    blocks = profile_under(profile, CUT)
    plan = (ArrivalOrder() if barrier else ForwardOrder()).plan(blocks, network)
    return iteration_s(blocks, make_sequence(blocks, network, plan), barrier)


def rows(
    rank: int = 0,
    engine: Literal["ddp", "byteps"] = "ddp",
    *,
    learned: Profile | None = PROFILE,
    network: Network | None = NETWORK,
    period_s: float = 1.0,
    computing_s: float = 0.9,
    iterations: int = 40,
    workers: int = 2,
    host: str = "a",
    half: bool = False,
    barrier: bool = False,
    settings: Mapping[str, str] | None = None,
) -> list[RecordRow]:
    """A worker's lines, without the last one; its blocks are those of CUT, and what is not computing is waiting."""
    name = WorkerName("train-29500", rank, engine, workers=workers, host=host)
    variable = "PROPHET_SCHEDULER" if engine == "ddp" else "BYTEPS_SCHEDULER"
    said = {variable: "prophet", **(settings or {})}
    made: list[RecordRow] = [
        BeginRow(name, unix_s=5e8, began_s=100.0, version="1", settings=said, all_reduce=engine == "ddp"),
        CutRow(100.5, 0, CUT.segments),
        RatesRow(100.9, 101.0 + period_s * iterations, 1, 1, 1.0, 1.0),
        IterationsRow(0, iterations, tuple(101.0 + period_s * number for number in range(iterations))),
        WaitsRow(101.0 + period_s * iterations, {"a": iterations * (period_s - computing_s) / 2}, others_s=0.0),
        WaitsRow(101.0 + period_s * iterations, {}, others_s=iterations * (period_s - computing_s) / 2),
    ]
    if learned is not None:
        made.append(profile_row(102.0, profile_under(learned, CUT), half, barrier))
    if network is not None:
        made.append(NetworkRow(103.0, network))
    return made


def end(**agent: Any) -> EndRow:
    return EndRow(200.0, 40, replace(AGENT, **agent), 0.1)


def rate(situation: Situation, node: str = "worker0") -> float | None:
    return situation.cell.cluster.bandwidth.rate(node)


def recorded(
    folder: Path, *workers: Sequence[RecordRow], links: LinkOptions = NOTHING, policy: str | None = None
) -> tuple[Situation, float]:
    """Return the situation and the iteration time of a job whose workers left these lines."""
    return of_record(write_rows(folder, *workers), links, policy)


def suggested(situation: Situation, measured_s: float) -> dict[str, Suggestion]:
    return {suggestion.change: suggestion for suggestion in advise(situation, measured_s).suggestions}


def test_situation_of_record(tmp_path: Path) -> None:
    lines = [*rows(period_s=0.93), end()], [*rows(1, learned=None, network=None), end()]
    situation, measured_s = recorded(tmp_path, *lines)
    assert not is_run(tmp_path)
    assert (situation.contender.name, situation.cell.cluster.workers) == ("ddp-prophet", 2)
    assert measured_s == pytest.approx(0.93) and rate(situation) == pytest.approx(250e6)
    assert situation.profile.total_bytes == pytest.approx(25_600_000, abs=1000)
    assert situation.profile.backward_s == pytest.approx(0.6, abs=1e-3)
    assert situation.profile.forward_s == pytest.approx(0.3, abs=0.01)
    assert situation.profile.name == "train-29500"
    assert (situation.waits, situation.workers_per_host, situation.assumed) == (False, 1, ())
    assert situation.cell.simulator.overhead_s == NETWORK.overhead_s
    assert rate(recorded(tmp_path, rows(network=None), links=LinkOptions(1e9))[0]) == 1e9, "given, as none is measured"


def test_recorder_output_suffices(tmp_path: Path) -> None:
    took = write_job_record(tmp_path, iterations=8)
    situation, measured_s = of_record(tmp_path, NOTHING)
    assert measured_s == pytest.approx(took, rel=1e-3)
    assert len(situation.profile.gradients) > 25, "of the smaller blocks that the job began with"
    assert situation.profile.backward_s == pytest.approx(0.6, rel=0.1)


@pytest.mark.parametrize("barrier", [False, True])
def test_predictions_match_planner_model(tmp_path: Path, barrier: bool) -> None:
    found = suggested(*recorded(tmp_path, [*rows(period_s=took_s(barrier=barrier), barrier=barrier), end()]))
    faster = replace(NETWORK, bandwidth=2 * NETWORK.bandwidth)
    expected = {
        "twice-the-rate": took_s(network=faster, barrier=barrier),
        "half-precision": took_s(on_the_wire(PROFILE, "fp16"), barrier=barrier),
        "larger-batch": took_s(at_pace(PROFILE, 2.0), barrier=barrier),
    }
    for change, real_s in expected.items():
        assert found[change].iteration_s == pytest.approx(real_s, rel=0.05), change
    assert "prophet" not in found and {"parameter-servers"} <= set(found)


def test_barrier_holds_in_all_predictions(tmp_path: Path) -> None:
    situation, measured_s = recorded(tmp_path, [*rows(barrier=True, period_s=1.2), end(barrier=True)])
    assert situation.waits and "reads all gradients" in situation.assumed[0]
    advice = advise(situation, measured_s, predict=lambda changed: 1.0 if changed.waits else 0.1)
    assert advice.assumed == situation.assumed
    assert all(suggestion.iteration_s > 0.9 for suggestion in advice.suggestions)


def test_forward_is_neither_backward_nor_waiting(tmp_path: Path) -> None:
    profile = recorded(tmp_path, [*rows(period_s=1.3, computing_s=1.1), end()])[0].profile
    assert profile.backward_s + profile.forward_s == pytest.approx(1.1, abs=0.02)
    for lines in (
        rows(period_s=1.3, computing_s=0.5),  # several threads waited at once
        [row for row in rows(period_s=1.3) if not isinstance(row, RatesRow)],
    ):
        profile = recorded(tmp_path, lines)[0].profile
        assert profile.forward_s == pytest.approx(0.3, abs=1e-3), "as it was learned"


def test_recorded_half_precision_is_not_suggested(tmp_path: Path) -> None:
    small = on_the_wire(PROFILE, "fp16")
    situation, took = recorded(tmp_path, [*rows(learned=small, half=True, period_s=0.9), end(half=True)])
    assert situation.profile.total_bytes == pytest.approx(25_600_000, abs=1000)
    assert situation.cell.wire is not None and situation.cell.wire.total_bytes == pytest.approx(12.8e6, abs=1000)
    assert "half-precision" not in suggested(situation, took)


def test_most_detailed_profile_at_newest_pace(tmp_path: Path) -> None:
    fine = profile_row(101.5, profile_under(PROFILE, learning_cut(PROFILE.total_bytes)))
    newest = profile_row(150.0, profile_under(at_pace(PROFILE, 1.5), CUT))
    other = profile_row(101.0, profile_under(resnet50(5_000_000), Cut.uniform(4096)))
    profile = recorded(tmp_path, [*rows(learned=None), other, fine, newest])[0].profile
    assert len(profile.gradients) == len(fine.gradient) > len(newest.gradient)
    assert profile.backward_s == pytest.approx(0.9, rel=0.1)
    transfers = TransfersRow(1.0, 2.0, (), (), (), (), (), (), (), arena=False)
    profile = recorded(tmp_path, [*rows(learned=None), transfers, fine, newest])[0].profile
    assert len(profile.gradients) == len(newest.gradient), "ids are no places there"


def test_iteration_time_since_last_cut(tmp_path: Path) -> None:
    later = IterationsRow(40, 10, tuple(141.5 + 0.5 * number for number in range(10)))
    changed = CutRow(140.2, 1, Cut.uniform(1 << 20).segments)
    assert recorded(tmp_path, [*rows(), changed, later])[1] == pytest.approx(0.5)
    few = replace(later, count=3, ends_s=later.ends_s[:3])
    _, period_s = recorded(tmp_path, [*rows(), replace(changed, time_s=141.0), few])
    assert period_s == pytest.approx(1.0), "too few to say anything"


def byteps(rank: int, *, workers: int = 2, servers: int = 1, **more: Any) -> list[RecordRow]:
    said = {"DMLC_NUM_WORKER": str(workers), "DMLC_NUM_SERVER": str(servers), **more.pop("settings", {})}
    lines = rows(rank, "byteps", settings=said, workers=more.pop("ranks", workers), **{"host": f"h{rank}", **more})
    return [*lines, end()]


def test_links_are_assumed_equal_with_servers(tmp_path: Path) -> None:
    slower = replace(NETWORK, bandwidth=25e6)
    folder = write_rows(tmp_path, byteps(0), byteps(1, network=slower))
    situation, _ = of_record(folder, NOTHING)
    assert (situation.contender.name, situation.cell.cluster.servers) == ("prophet", 1)
    assert rate(situation) == rate(situation, "server0") == pytest.approx(400e6), "two share what the slower one has"
    assert "400mbit" in situation.assumed[0]
    wide, _ = of_record(folder, LinkOptions(server_bandwidth=10e9))
    assert rate(wide) == pytest.approx(200e6) and rate(wide, "server0") == 10e9 and not wide.assumed
    narrow, _ = of_record(folder, LinkOptions(server_bandwidth=410e6))
    assert rate(narrow) == rate(narrow, "server0") == 410e6 and "workers' links are assumed" in narrow.assumed[0]
    told, _ = of_record(folder, LinkOptions(bandwidth=1e9, server_bandwidth=410e6))
    assert rate(told) == 1e9 and rate(told, "server0") == 410e6 and not told.assumed


def test_another_server_helps_narrow_servers(tmp_path: Path) -> None:
    large = resnet50(51_200_000, backward_s=0.6, forward_s=0.3)
    lines = (byteps(rank, learned=large, period_s=1.75) for rank in range(2))
    found = suggested(*recorded(tmp_path, *lines, links=LinkOptions(1e9, 500e6)))
    assert found["another-server"].iteration_s < 0.65 * 1.75
    assert found["another-server"].iteration_s == pytest.approx(found["faster-servers"].iteration_s, rel=0.1)
    assert not found["twice-the-rate"].helps
    assert "ddp" in found


def test_workers_per_host_and_processes_per_worker(tmp_path: Path) -> None:
    shared = [byteps(rank, host="a", servers=2) for rank in range(2)]
    situation, _ = recorded(tmp_path, *shared)
    assert situation.workers_per_host == 2 and rate(situation) == pytest.approx(500e6), "the host's"
    whole = byteps(0, workers=2, ranks=8, settings={"BYTEPS_LOCAL_SIZE": "4"})
    (tmp_path / "worker1.jsonl").unlink()
    situation, _ = recorded(tmp_path, whole)
    assert (situation.cell.cluster.workers, situation.workers_per_host) == (2, 1)
    situation, _ = recorded(tmp_path, rows(workers=4, settings={"LOCAL_WORLD_SIZE": "2"}))
    assert situation.workers_per_host == 2 and rate(situation) == pytest.approx(250e6 * 1.5), "of a ring of four"


def test_notes_say_how_prophet_ended(tmp_path: Path) -> None:
    situation, _ = recorded(tmp_path, [*rows(), end(given_back="0.1 s and not 0.2 s")])
    assert "0.1 s and not 0.2 s" in situation.assumed[0]
    assert recorded(tmp_path, [*rows(), end(policy="p3")])[0].contender.name == "ddp-p3"


@pytest.mark.parametrize(
    ("lines", "links", "policy", "line"),
    [
        (rows(learned=None), NOTHING, None, "no worker's record has a profile of the job"),
        (rows(network=None), NOTHING, None, "that job measured no network; give --bandwidth"),
        (rows(iterations=4), NOTHING, None, "the job has 3 iterations on record; let it run"),
        (rows(), LinkOptions(workers=4), None, "are --bandwidth and --server-bandwidth"),
        (rows(), NOTHING, "p3", "which knows how it ran; leave --policy out"),
        (
            rows(settings={"PROPHET_SCHEDULER": "ddp-nothing"}),
            NOTHING,
            None,
            "that job ran under 'ddp-nothing', for which there is no prediction",
        ),
        (
            [*rows(learned=None), ProfileRow(1.0, (0, 8), (1000,), (0.1, 0.2), (0.1, 0.1))],
            NOTHING,
            None,
            "the job's profile cannot be read",
        ),
    ],
)
def test_insufficient_record_is_one_line(
    tmp_path: Path, lines: list[RecordRow], links: LinkOptions, policy: str | None, line: str
) -> None:
    with pytest.raises(UserError, match=line) as raised:
        recorded(tmp_path, lines, links=links, policy=policy)
    assert str(tmp_path) in str(raised.value)


def test_command_takes_a_record(prophet: Command, tmp_path: Path) -> None:
    folder = write_rows(tmp_path, [*rows(period_s=took_s()), end()])
    status, out, _ = prophet("advise", folder, "--json")
    advice = json.loads(out)
    assert status == 0 and advice["measured_s"] == pytest.approx(took_s(), rel=1e-3)
    assert {each["change"] for each in advice["suggestions"]} >= {"twice-the-rate", "half-precision", "larger-batch"}
