"""Every reader of files, fuzzed: what is right, damaged somewhere, is read or refused in one line.

What belongs here: readers of what users write, and of what Prophet leaves. `make fuzz` runs this with many examples.
"""

from __future__ import annotations

import dataclasses
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import example, given

from prophet_scheduler.core.cut import Cut, blocks_of, learning_cut
from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.event_record import EventRecord, load_events, load_record
from prophet_scheduler.core.events import BOTH_LANES, EVENT_DTYPE, EventKind, QueueEvent
from prophet_scheduler.core.files import parse_json, read_text
from prophet_scheduler.core.network import Network
from prophet_scheduler.core.plan import Plan, QueuePlan
from prophet_scheduler.core.plan_codec import encode_plan
from prophet_scheduler.core.settings import NAMES, Settings, from_environ
from prophet_scheduler.core.units import format_rate, format_size, format_time, parse_rate, parse_size, parse_time
from prophet_scheduler.lab.advice_sources import LinkOptions, of_record
from prophet_scheduler.lab.config import load_experiment
from prophet_scheduler.lab.records import read_results, read_status, read_worker
from prophet_scheduler.lab.report import story_of
from prophet_scheduler.lab.report.from_run import pair_events
from prophet_scheduler.lab.results_view import describe_setting
from prophet_scheduler.models.profiles import load_profile, save_profile
from prophet_scheduler.policies import get_policy
from prophet_scheduler.session.kept import Kept, kept_from_json, kept_to_json
from prophet_scheduler.simulate.replay import replay
from support.configs import REPLAY
from support.damaged import ODD, contents, documents, fuzzed, json_files, read_or_refused
from support.job_records import write_experiment, write_job_record
from support.profiles import resnet50


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run, that of a job's record, and a profile."""
    folder = tmp_path_factory.mktemp("left")
    write_experiment(folder / "run")
    (folder / "record").mkdir()
    write_job_record(folder / "record")
    save_profile(resnet50(1_000_000, steps=4), folder / "profile.json", "a test")
    return folder


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scratch")


def document(path: Path) -> Any:
    return json.loads(path.read_text())


@fuzzed
@given(st.data())
def test_profile(left: Path, scratch: Path, data: st.DataObject) -> None:
    right = document(left / "profile.json")
    right["gradients"] = right["gradients"][:3]
    read_or_refused(load_profile, scratch / "odd.json", data.draw(json_files(right)))


PROFILE = resnet50(30_000_000, steps=3)
FEW = dataclasses.replace(PROFILE, gradients=PROFILE.gradients[:4])
KEPT = Kept(FEW, Network(1e8, 1e-4, 1e-3), learning_cut(1 << 20))


@fuzzed
@given(st.data())
def test_files_of_a_run(left: Path, scratch: Path, data: st.DataObject) -> None:
    for name, read in (("worker0.status.json", read_status), ("worker0.json", read_worker)):
        (right,) = [document(path) for path in sorted((left / "run").rglob(name))[:1]]
        read_or_refused(read, scratch / "odd.json", data.draw(json_files(right)))
    right = document(left / "run" / "results.json")
    results = read_or_refused(read_results, scratch / "odd.json", data.draw(json_files(right)))
    for cell in results.cells if results is not None else ():
        assert isinstance(describe_setting(cell.setting), str)


def begin(path: Path) -> None:
    """Begin a job with what an earlier one has kept."""
    kept = kept_from_json(read_text(path))
    if kept.network is not None:
        for policy in ("prophet", "bytescheduler"):
            encode_plan(get_policy(policy).plan(kept.profile, kept.network))


@fuzzed
@given(st.data())
def test_what_a_job_kept(scratch: Path, data: st.DataObject) -> None:
    right = json.loads(kept_to_json(KEPT))
    read_or_refused(begin, scratch / "odd.json", data.draw(json_files(right)), ValueError)


@fuzzed
@given(st.data())
def test_record_of_a_job(left: Path, scratch: Path, data: st.DataObject) -> None:
    lines = (left / "record" / "worker0.jsonl").read_bytes().splitlines(keepends=True)
    # One of each kind, the last ones.
    few = list({json.loads(line)["kind"]: line for line in lines}.values())
    place = data.draw(st.integers(0, len(few) - 1))
    if data.draw(st.booleans()):
        few[place] = json.dumps(data.draw(documents(json.loads(few[place])))).encode() + b"\n"
        content = b"".join(few)
    else:
        content = data.draw(contents(b"".join(few)))
    folder = scratch / "worker0.jsonl of a record"
    folder.mkdir(exist_ok=True)

    def read(path: Path) -> None:
        story_of(folder)
        of_record(folder, LinkOptions(bandwidth=1e9))

    read_or_refused(read, folder / "worker0.jsonl", content, UserError)


YAML = {**REPLAY, "sweep": [{"cluster": {"bandwidth": [{"at_s": 0, "rate": "1gbit"}, {"at_s": 2, "rate": 5e7}]}}]}
YAML["policies"] = ["stock", {"base": "prophet", "name": "p", "partition_bytes": ["1MB", "2MB"]}]
YAML["simulator"] = {"jitter": 0.1, "burst": 0}
YAML["cluster"] = {
    **YAML["cluster"],
    "delay": {"default": "1ms"},
    "traffic": [{"node": "worker0", "from_s": 1.0, "until_s": 2.0, "rate": "10mbit"}],
    "faults": [{"kind": "stopped", "node": "worker1", "from_s": 1.0, "until_s": 2.0}],
}
LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{after}: &{after} [{', '.join([f'*{name}'] * 9)}]\n" for name, after in zip("abcdefgh", "bcdefghi", strict=True)
)


@fuzzed
@given(json_files(YAML))
@example(LAUGHS.encode())
@example(f"{LAUGHS}name: *i\n".encode())
@example(b"name: &a [*a]\njob: *a\n")
@example(b"<<: &a {<<: *a}\n")
@example(b"job: {iterations: 0x" + b"f" * 9000 + b"}\n")
@example(b"job: {iterations: 1e400, warmup: .nan}\n1: 2\n")
@example(b"? [a]\n: b\n")
@example(b"a: !!python/object/apply:os.system [ls]\n")
@example(b"a: 2001-99-99\n")
@example(b"\xff\xfe")
@example(b"[" * 400)
@example(b"- " * 3000)
def test_config(scratch: Path, content: bytes) -> None:
    read_or_refused(load_experiment, scratch / "odd.yaml", content)


@fuzzed
@given(st.data())
def test_folder_of_a_report(left: Path, scratch: Path, data: st.DataObject) -> None:
    """The whole folder of a run, one file of it damaged."""
    run = scratch / "run"
    for path in (left / "run").rglob("*"):
        if path.is_file():
            copy = run / path.relative_to(left / "run")
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())
    path = data.draw(st.sampled_from(sorted(p for p in run.rglob("*") if p.is_file())))
    right = path.read_bytes()
    content = data.draw(json_files(json.loads(right)) if path.suffix == ".json" else contents(right))

    def read(path: Path) -> None:
        story_of(run)

    read_or_refused(read, path, content, UserError)


ROWS = [
    (0.0, 0, 0, 0, BOTH_LANES, QueueEvent.PLAN, 0),
    (1.0, 3, 0, 0, 0, EventKind.ADD, 0),
    (1.0, 5, 10, 0, 0, EventKind.ADD, 0),
    (1.0, 3, 0, 0, 0, EventKind.START, 0),
    (1.0, 5, 10, 0, 0, EventKind.START, 0),
    (1.5, 3, 0, 0, 0, EventKind.FINISH, 0),
    (1.5, 3, 0, 0, 1, EventKind.ADD, 0),
    (1.5, 5, 10, 0, 0, EventKind.FINISH, 0),
    (1.6, 3, 0, 0, 1, EventKind.START, 0),
    (2.0, 3, 0, 0, 1, EventKind.FINISH, 0),
    (2.0, 0, 0, 0, BOTH_LANES, QueueEvent.EMPTY, 0),
]
"""Events of a job with two tasks, one of them without bytes."""
PLAN = encode_plan(Plan(push=QueuePlan(order={}, credit=10), pull=QueuePlan(order={})))


def test_undamaged_record_is_valid() -> None:
    result = replay(EventRecord(np.array(ROWS, EVENT_DTYPE), {0: PLAN}))
    assert (result.same, result.differences, result.unchecked) == (3, (), ())


@st.composite
def records(draw: st.DrawFn) -> bytes:
    rows = [list(row) for row in ROWS]
    for _ in range(draw(st.integers(0, 3))):
        row, column = draw(st.sampled_from(rows)), draw(st.integers(0, 6))
        limit = [0, 2**32, 2**32, 2**16, 2**8, 2**8, 2**32][column]
        row[column] = draw(st.floats() if column == 0 else st.sampled_from([0, 1, 2, 3, 4, 5, limit - 1]))
        if draw(st.booleans()):
            rows.insert(draw(st.integers(0, len(rows))), row)
    plan = draw(contents(PLAN)) if draw(st.booleans()) else PLAN
    file = io.BytesIO()
    np.savez(
        file,
        version=2,
        events=np.array([tuple(row) for row in rows], EVENT_DTYPE),
        plan_numbers=[0],
        plan_bytes=[len(plan)],
        plans=np.frombuffer(plan, np.uint8),
        watchdog_s=draw(st.sampled_from([1.0, 1e-300, 0.0, -1.0, float("nan"), float("inf")]) | st.floats()),
        most_in_flight=draw(st.sampled_from([0, 1, 256, -5, 2**64 - 1, 1e300])),
    )
    return draw(contents(file.getvalue())) if draw(st.integers(0, 3)) == 0 else file.getvalue()


@fuzzed
@given(records())
def test_record_of_events(scratch: Path, content: bytes) -> None:
    path = scratch / "odd.npz"
    record = read_or_refused(load_record, path, content)
    events = read_or_refused(load_events, path, content)
    if record is not None:
        pair_events(events)
        try:
            replay(record)
        except UserError as error:
            assert "\n" not in str(error)


@fuzzed
@given(st.sampled_from(sorted(NAMES)), st.sampled_from([str(odd) for odd in ODD]) | st.text())
def test_settings(name: str, text: str) -> None:
    try:
        settings = from_environ({"BYTEPS_SCHEDULER": "prophet", name: text})
    except UserError as error:
        assert name in str(error)
    else:
        assert isinstance(settings, Settings)


@fuzzed
@given(st.sampled_from(ODD) | st.text() | st.floats() | st.integers())
def test_rates_sizes_and_times(value: Any) -> None:
    pairs: tuple[tuple[Callable[[object], float], Callable[[float], str]], ...] = (
        (parse_rate, format_rate),
        (parse_size, format_size),
        (parse_time, format_time),
    )
    for parse, shown in pairs:
        try:
            assert shown(parse(value))
        except ValueError as error:
            assert "write e.g." in str(error)


@fuzzed
@given(contents(learning_cut(30 << 20).encode()))
def test_cut_of_other_worker(encoded: bytes) -> None:
    try:
        cut = Cut.decode(encoded)
    except ValueError:
        return
    if cut is not None:
        sizes = [5 << 20, 4, 4096]
        assert sum(block.size_bytes for block in blocks_of(sizes, ["f"] * len(sizes), cut)) == sum(sizes)


@pytest.mark.parametrize("text", ["NaN", "[1e400]", "[" * 5000, '"\\ud800"', "9" * 5000, "{", ""])
def test_unusable_json_is_value_error(text: str) -> None:
    with pytest.raises(ValueError) as error:
        parse_json(text)
    assert "\n" not in str(error.value)
    assert parse_json("[123456789012345678901, 18446744073709551615]") == [123456789012345678901.0, 2**64 - 1]
