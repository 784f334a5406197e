"""Settings of a training process from its environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.settings import CHOSEN, from_environ, in_step

ON = {"BYTEPS_SCHEDULER": "prophet"}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("PROPHET_MONITOR_S", "x"),
        ("PROPHET_WATCHDOG_S", "nan"),
        ("PROPHET_PARTITION_BYTES", "4095"),
        ("PROPHET_PARTITION_BYTES", "1e12"),
        ("PROPHET_STALL_S", "0"),
        ("PROPHET_FUSION", "yes"),
        ("PROPHET_STATUS", "off"),
        ("PROPHET_METRICS_PORT", "http"),
        ("PROPHET_METRICS_PORT", "0"),
        ("PROPHET_METRICS_PORT", "65536"),
        ("PROPHET_METRICS_HOST", "my.host"),
        ("BYTEPS_PARTITION_BYTES", "4MB"),
        ("BYTEPS_PARTITION_BYTES", "0"),
        ("BYTEPS_PARTITION_BYTES", "-1"),
        ("BYTEPS_PARTITION_BYTES", ""),
        ("BYTEPS_PARTITION_BYTES", "4294967296"),
    ],
)
def test_what_is_wrong_is_named(name: str, text: str) -> None:
    with pytest.raises(UserError, match=f"{name} is '{text}'; it must be"):
        from_environ({**ON, name: text})


def test_bytepss_own_partition_size_comes_first() -> None:
    assert from_environ(ON).partition_bytes is None
    ours = {**ON, "PROPHET_PARTITION_BYTES": "65536"}
    assert from_environ(ours).partition_bytes == 65536
    assert from_environ({**ours, "BYTEPS_PARTITION_BYTES": "1000"}).partition_bytes == 1000
    inherited = {**ON, "BYTEPS_PARTITION_BYTES": "4096000", CHOSEN: "4096000"}
    assert from_environ(inherited).partition_bytes is None, "that of a parent process"
    assert from_environ({**inherited, CHOSEN: "131072"}).partition_bytes == 4096000


@pytest.mark.parametrize(("value", "yes"), [("", True), ("0", True), ("1", False)])
def test_workers_are_in_step_unless_bytepss_servers_are_asynchronous(value: str, yes: bool) -> None:
    assert in_step({})
    assert in_step({"BYTEPS_ENABLE_ASYNC": value}) is yes


def test_what_a_process_says_of_itself() -> None:
    plain = from_environ(ON)
    assert (plain.status, plain.record, plain.metrics_port, plain.metrics_host) == (True, None, None, "127.0.0.1")
    silent = {"PROPHET_STATUS": "0", "PROPHET_QUIET": "1"}
    assert plain.says and plain.watched and not from_environ({**ON, **silent}).watched
    assert from_environ({**ON, "PROPHET_STATUS": "0"}).watched, "what it says at its end it has to see"
    asked = {**ON, "PROPHET_STATUS": "0", "PROPHET_RECORD": "here", "PROPHET_METRICS_PORT": "9400"}
    told = from_environ({**asked, "BYTEPS_LOCAL_RANK": "3", "PROPHET_METRICS_HOST": "::1"})
    assert told.watched and told.record == Path("here").absolute()
    assert (told.metrics_port, told.metrics_host) == (9403, "::1"), "a port for each process of the machine"
    with pytest.raises(UserError, match="PROPHET_METRICS_PORT is '65535'; process 1 here would need a port above"):
        from_environ({**ON, "PROPHET_METRICS_PORT": "65535", "BYTEPS_LOCAL_RANK": "1"})


def test_a_stall_has_no_limit_unless_it_is_given_one() -> None:
    assert from_environ(ON).stall_s is None
    assert from_environ({**ON, "PROPHET_STALL_S": ""}).stall_s is None
    assert from_environ({**ON, "PROPHET_STALL_S": "90"}).stall_s == 90.0


def test_what_is_learned_is_kept_in_the_users_cache() -> None:
    assert from_environ(ON).cache is None, "a user without a home has none"
    home = {**ON, "HOME": "/home/me"}
    assert from_environ(home).cache == Path("/home/me/.cache/prophet/jobs")
    assert from_environ({**home, "XDG_CACHE_HOME": "/var/cache/me"}).cache == Path("/var/cache/me/prophet/jobs")
    assert from_environ({**home, "XDG_CACHE_HOME": "relative"}).cache == Path("/home/me/.cache/prophet/jobs")
    assert from_environ({**home, "PROPHET_CACHE": "off"}).cache is None
    assert from_environ({**home, "PROPHET_CACHE": "here"}).cache == Path("here").absolute()


def test_processes_of_one_machine_write_files_of_their_own() -> None:
    files = {f"PROPHET_{kind}_OUT": f"out/{kind.lower()}.json" for kind in ("STATUS", "PROFILE", "EVENTS")}
    written = set()
    for rank in range(3):
        settings = from_environ({**ON, **files, "BYTEPS_LOCAL_SIZE": "3", "BYTEPS_LOCAL_RANK": str(rank)})
        written |= {settings.status_out, settings.profile_out, settings.events_out}
    assert len(written) == 9
    assert {Path("out/status.json"), Path("out/status.1.json"), Path("out/status.2.json")} < written
    assert from_environ({**ON, **files}).status_out == Path("out/status.json")
