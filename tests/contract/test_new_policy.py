"""A policy that somebody adds is a file and its entry point: all that shows or sets its options follows from those."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from prophet_scheduler import plugins
from prophet_scheduler.cli.main import app
from prophet_scheduler.core.errors import UserError
from prophet_scheduler.lab.simulated import prepare
from prophet_scheduler.policies import policy_from_environ, unknown_variables
from support.configs import REPLAY, changed, loaded
from tools.derived import options_table, policies_table

ADDED = Path(__file__).with_name("added_policy")
"""The distribution that is added, as it is installed."""


@pytest.fixture(autouse=True)
def added(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(ADDED)
    plugins.entries.cache_clear()
    yield
    plugins.entries.cache_clear()
    sys.modules.pop("half_rate", None)


def test_its_options_are_variables_of_a_job() -> None:
    assert policy_from_environ("half-rate", {}).plan(None, None).push.credit == 1_000_000
    environ = {"PROPHET_SHARE": "0.25", "PROPHET_BUFFER_BYTES": "4000", "PROPHET_BOTH_WAYS": "1"}
    plan = policy_from_environ("half-rate", environ).plan(None, None)
    assert (plan.push.credit, plan.pull.credit) == (1000, 1000)
    assert policy_from_environ("half-rate-late", {}).plan(None, None).policy == "half-rate-late"
    misspelt = {"PROPHET_SHRE": "PROPHET_SHARE", "PROPHET_BUFFER_BITES": "PROPHET_BUFFER_BYTES"}
    assert unknown_variables([*environ, *misspelt]) == misspelt
    for variable, text in (("PROPHET_SHARE", "much"), ("PROPHET_SHARE", "0"), ("PROPHET_BOTH_WAYS", "yes")):
        with pytest.raises(UserError, match=f"^{variable} is '{text}'; it must be "):
            policy_from_environ("half-rate", {variable: text})


def test_its_options_are_keys_of_a_config(tmp_path: Path) -> None:
    entry = {"name": "half-rate", "buffer_bytes": ["4kB", "8kB"], "share": 0.25, "both_ways": True}
    cell = loaded(changed(REPLAY, "policies", [entry]), tmp_path).cells[0]
    assert [policy.name for policy in cell.policies] == ["half-rate-4kB-0.25-1", "half-rate-8kB-0.25-1"]
    assert cell.policies[1].env == {
        "BYTEPS_SCHEDULER": "half-rate",
        "PROPHET_BUFFER_BYTES": "8000",
        "PROPHET_SHARE": "0.25",
        "PROPHET_BOTH_WAYS": "1",
    }
    scheduled_by = prepare(cell, cell.policies[1]).policy
    assert scheduled_by is not None
    assert scheduled_by.plan(None, None).push.credit == 2000


@pytest.mark.parametrize(
    ("key", "value", "line"),
    [
        ("share", "half", r"policies\[0\].share: it must be a number, not 'half'"),
        ("share", 0, r"policies\[0\].share is '0'; it must be a number of at least 0.01"),
        ("share", [], r"policies\[0\].share: is an empty list"),
        ("both_ways", 1, r"policies\[0\].both_ways: it must be true or false, not 1"),
        ("buffer_bytes", "big", r"policies\[0\].buffer_bytes: 'big' is not a size"),
        ("credit_bytes", 5, r"policies\[0\]: credit_bytes is a setting of bytescheduler, not of half-rate"),
        ("shares", 5, r"policies\[0\].shares: unknown key; the keys here are name, .*, env, buffer_bytes, share, both"),
    ],
)
def test_a_mistake_in_a_config_is_one_line_that_names_the_key(
    key: str, value: object, line: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=line):
        loaded(changed(REPLAY, "policies", [{"name": "half-rate", key: value}]), tmp_path)


def test_its_options_are_in_the_page_and_in_the_help() -> None:
    assert "| `half-rate-late` | half of the buffer, later |" in policies_table()
    assert "| `PROPHET_SHARE` | `share` | `half-rate` | 0.5 | of the buffer that is in flight |" in options_table()
    assert (
        "| `PROPHET_BOTH_WAYS` | `both_ways` | `half-rate-late` | 0 | whether pulls are limited too |"
        in options_table()
    )
    shown = CliRunner().invoke(app, ["run", "--help"], env={"COLUMNS": "200"}).output
    assert "half-rate: half of the buffer" in shown
    assert "- buffer_bytes: the buffer, in bytes (default 2000000)" in shown
