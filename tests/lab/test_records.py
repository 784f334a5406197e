"""Reading what experiments write: older files, newer ones, and files that are wrong."""

from __future__ import annotations

import copy
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.network import Network
from prophet_scheduler.core.plan import Deadline
from prophet_scheduler.core.status import AgentStatus, HookStatus
from prophet_scheduler.lab.jobs.record import Mark, WorkerRecord, write_record
from prophet_scheduler.lab.records import RECORDS, read_results, read_status, read_worker, write_results
from prophet_scheduler.models.profiles import load_profile

OLDEST: dict[str, Any] = {
    "schema": 1,
    "config": {"name": "old"},
    "cells": [
        {
            "setting": {"bandwidth": 250e6},
            "lower_bound_s": None,
            "policies": {
                "stock": {"iteration_s": {"median": 2.0, "p10": 1.9, "p90": 2.1}, "repeats": [2.0]},
                "p3": {"error": "hung"},
            },
            "ratios": {"stock": 1.0},
        }
    ],
}
"""The keys that results.json had from the beginning."""


def written(folder: Path, content: object) -> Path:
    path = folder / "file.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def test_old_results_are_read_and_unchanged(tmp_path: Path) -> None:
    path = written(tmp_path, OLDEST)
    results = read_results(path)
    (cell,) = results.cells
    assert cell.policies["stock"].time_s == cell.policies["stock"].rest_s == 2.0, "the median is all that there is"
    assert cell.policies["stock"].iterations_s() == []
    assert cell.measured("p3") is None and cell.measured("nobody") is None
    assert cell.times_s == cell.rests_s == {"stock": 2.0}, "of those that did not fail"
    assert (cell.narrow_link, cell.links, cell.policies["p3"].error) == (None, {}, "hung")
    write_results(results, path)
    assert json.loads(path.read_text()) == OLDEST
    assert read_results(written(tmp_path, {**OLDEST, "news": 1})) == results, "keys of a later release are passed over"


WITHOUT_MEDIAN: dict[str, Any] = copy.deepcopy(OLDEST)
del WITHOUT_MEDIAN["cells"][0]["policies"]["stock"]["iteration_s"]["median"]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ({**OLDEST, "schema": 3}, "'schema' is 3; this Prophet reads schema 1 and 2"),
        (WITHOUT_MEDIAN, "cells[0].policies.stock.iteration_s.median: field required"),
        ([], "the whole: "),
        ({"config": {}}, "cells: field required"),
    ],
)
def test_wrong_results_are_one_line_with_key(tmp_path: Path, content: object, says: str) -> None:
    path = written(tmp_path, content)
    with pytest.raises(UserError) as error:
        read_results(path)
    assert str(error.value).startswith(f"{path}: ") and says in str(error.value) and "\n" not in str(error.value)


def test_missing_file_and_bad_json(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none\.json: cannot be read \(No such file"):
        read_results(tmp_path / "none.json")
    for text in ("", "{", "[" * 100_000):
        (tmp_path / "text").write_text(text)
        with pytest.raises(UserError, match="cannot be read as results \\(it is not JSON\\)"):
            read_results(tmp_path / "text")


def test_worker_record_round_trip(tmp_path: Path) -> None:
    record = WorkerRecord([1.0], [Mark(0.0, 0.1, 0.2), Mark(1.0, 1.1, 1.2)], 4.0, [5, 6], 7.0, ["a"], "abc", 1)
    path = tmp_path / "worker0.json"
    write_record(record, path)
    assert read_worker(path) == record
    assert "accuracy" not in json.loads(path.read_text())
    assert list(tmp_path.iterdir()) == [path]


def test_status_round_trip_and_older_hook(tmp_path: Path) -> None:
    hook = HookStatus(True, "", 10, 0, 0, 0, 0, 0.5)
    status = AgentStatus(
        "prophet", "", 2, 0.05, 131072, None, 4, (Deadline(0.1, 3),), Network(31e6, 0.001, 0.002), hook
    )
    path = written(tmp_path, dataclasses.asdict(status))
    assert read_status(path) == status
    older = json.loads(path.read_text())
    for key in ("still_s", "pushes", "pulls"):
        del older["hook"][key]
    assert read_status(written(tmp_path, older)).hook == dataclasses.replace(hook, still_s=None)


@pytest.mark.parametrize(
    "path", sorted((Path(__file__).parents[2] / "configs/profiles").glob("*.json")), ids=lambda path: path.stem
)
def test_shipped_profiles_match_schema(path: Path) -> None:
    raw = json.loads(path.read_text(encoding="utf-8"))
    stored = dict(RECORDS)["profile"].validate_python(raw)
    assert len(stored.gradients) == len(load_profile(path).gradients)
    assert dataclasses.asdict(stored) == raw
