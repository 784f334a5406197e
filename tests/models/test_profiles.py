"""Profiles: the JSON form and its errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.models.profiles import find_profile, load_profile, save_profile
from support.profiles import resnet50

GOOD: dict[str, Any] = {
    "schema": 1,
    "name": "two",
    "gradients": [
        {"name": "a", "bytes": 4, "generation_s": 0.2, "forward_s": 0.1},
        {"name": "b", "bytes": 8, "generation_s": 0.1, "forward_s": 0.1},
    ],
}


def test_what_is_saved_is_loaded_again(tmp_path: Path) -> None:
    path = tmp_path / "resnet50.json"
    profile = resnet50(25_600_000)
    save_profile(profile, path, source="built in")
    assert load_profile(path) == profile
    assert list(tmp_path.iterdir()) == [path]


def changed(index: int, key: str, value: object) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(json.dumps(GOOD))
    record["gradients"][index][key] = value
    return record


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ([], "the whole: Input should be an object"),
        ({"schema": 2}, "schema: Input should be 1"),
        ({"schema": 1, "name": 5, "gradients": []}, "name: Input should be a valid string"),
        ({"schema": 1, "gradients": "many"}, "gradients: Input should be a valid array"),
        ({"schema": 1, "gradients": []}, "'gradients' is empty"),
        ({"schema": 1, "gradients": [3]}, r"gradients\[0\]: Input should be an object"),
        (changed(0, "bytes", -4), r"gradients\[0\] \(a\): 'bytes' is -4; it must be above 0"),
        (changed(0, "bytes", 1.5), r"gradients\[0\].bytes: Input should be a valid integer"),
        (changed(1, "generation_s", -0.1), r"gradients\[1\] \(b\): 'generation_s' is -0.1; it must be 0 or more"),
        (
            changed(1, "generation_s", 0.3),
            r"gradients\[1\] \(b\): 'generation_s' is 0.3, above that of the more urgent",
        ),
        (changed(1, "forward_s", "soon"), r"gradients\[1\].forward_s: Input should be a valid number"),
        (changed(1, "speed", 1), r"gradients\[1\].speed: Unexpected keyword argument"),
        (changed(1, "bytes", True), r"gradients\[1\].bytes: Input should be a valid integer"),
        (changed(1, "generation_s", float("nan")), r"gradients\[1\] \(b\): 'generation_s' is nan"),
        ({"schema": 1, "gradients": [{"name": "a", "bytes": 4}]}, r"gradients\[0\].generation_s: Field required"),
    ],
)
def test_a_bad_profile_is_one_line_that_names_file_and_key(tmp_path: Path, record: object, message: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(record))
    with pytest.raises(UserError, match=message) as error:
        load_profile(path)
    assert str(error.value).startswith(str(path))
    assert "\n" not in str(error.value)


def test_a_missing_file_and_one_that_is_not_json(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such profile file"):
        load_profile(tmp_path / "none.json")
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    with pytest.raises(UserError, match="is not a profile"):
        load_profile(broken)
    for text in ("[" * 100_000, "9" * 5000):
        broken.write_text(text)
        with pytest.raises(UserError, match=r"broken\.json: is not a profile \(") as error:
            load_profile(broken)
        assert "\n" not in str(error.value)


def test_another_file_of_the_project_is_none_and_it_says_how_one_is_made(tmp_path: Path) -> None:
    results = tmp_path / "results.json"
    for record in ({"schema": 1, "config": {}, "cells": []}, {"kind": "begin"}):
        results.write_text(json.dumps(record))
        with pytest.raises(UserError, match=r"is not a profile \(gradients: Field required\); record one"):
            load_profile(results)


def test_a_profile_is_found_by_the_name_of_a_built_in_one_or_of_a_file(tmp_path: Path) -> None:
    save_profile(resnet50(25_600_000), tmp_path / "job.json", source="a test")
    assert find_profile("resnet50") == resnet50()
    assert find_profile(str(tmp_path / "job.json")).total_bytes == 25_600_000
    with pytest.raises(UserError, match=r"resnet5: no such profile file, and no built-in profile \(resnet50, .*vgg19"):
        find_profile("resnet5")
