"""Plans on their way to the hook and in its record: what it refuses, what it writes down, and that this replays."""

from __future__ import annotations

import ctypes
import logging
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.typing import NDArray

from prophet_byteps import hook as hook_module
from prophet_byteps.agent import Agent
from prophet_byteps.hook import TakenPlan, _Layouts, check_layouts
from prophet_byteps.library import HookError
from prophet_scheduler.core import plan_codec
from prophet_scheduler.core.event_record import load_record
from prophet_scheduler.core.events import EVENT_DTYPE, EVENT_VERSION
from prophet_scheduler.core.plan import Plan
from prophet_scheduler.core.settings import Settings
from prophet_scheduler.policies import get_policy
from support.fake_core import build_core

CASES = Path(__file__).with_name("hook_plan_cases.py")


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_core(tmp_path_factory.mktemp("core"))


@pytest.mark.parametrize("case", ["refused", "logged", "replayed", "overflowed"])
def test_plans_of_a_hook(case: str, core: Path) -> None:
    command = [sys.executable, "-P", str(CASES), case, str(core)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr


class Native:
    """A hook's shared object as far as it says what it was compiled with."""

    def __init__(self, event_version: int, event_bytes: int, plan_version: int) -> None:
        self._layouts = _Layouts(event_version, event_bytes, plan_version, 256)

    def prophet_hook_layouts(self, out: object) -> None:
        ctypes.memmove(out, ctypes.byref(self._layouts), ctypes.sizeof(self._layouts))  # type: ignore[arg-type]

    def prophet_hook_give_size(self) -> None:
        """The newest function."""


THIS = (EVENT_VERSION, EVENT_DTYPE.itemsize, plan_codec.VERSION)


def test_a_hook_of_this_prophet_is_taken() -> None:
    assert check_layouts(Native(*THIS)) == 256  # type: ignore[arg-type]


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_hook_of_another_prophet_is_refused_with_a_line(place: int) -> None:
    other = [number + (at == place) for at, number in enumerate(THIS)]
    with pytest.raises(HookError, match=r"is another Prophet's .* install Prophet anew$"):
        check_layouts(Native(*other))  # type: ignore[arg-type]


def test_a_hook_from_before_there_were_versions_is_refused_with_a_line() -> None:
    with pytest.raises(HookError, match=r"is an older Prophet's; install Prophet anew$"):
        check_layouts(SimpleNamespace())  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def _no_hook_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent makes its hook the process's one, which other tests look at."""
    monkeypatch.setattr(hook_module, "_loaded", None)


class RecordingHook:
    """A hook that takes `plans` plans and refuses the next."""

    most_in_flight = 256

    def __init__(self, plans: int) -> None:
        self.plans = plans
        self.taken = 0
        self.aside = ""

    def attach(self, library: object, watchdog_s: float) -> None:
        pass

    def set_plan(self, plan: Plan) -> TakenPlan:
        if self.taken == self.plans:
            raise HookError("the hook cannot take a plan: of another kind")
        self.taken += 1
        return TakenPlan(self.taken - 1, plan_codec.encode_plan(plan))

    def drain(self) -> NDArray[np.void]:
        return np.array([(1.0, 0, 8, 0, 0, 0, 0)], EVENT_DTYPE)

    def step_aside(self, why: str) -> None:
        self.aside = why


def job_of(hook: RecordingHook, events_out: Path | None = None) -> Agent:
    settings = Settings("fifo", watchdog_s=2.0, events_out=events_out)
    return Agent("torch", settings, get_policy("fifo"), SimpleNamespace(), hook)  # type: ignore[arg-type]


def test_a_plan_that_the_hook_refuses_is_one_warning_and_bytepss_own_order(caplog: pytest.LogCaptureFixture) -> None:
    hook = RecordingHook(0)
    job = job_of(hook)
    with caplog.at_level(logging.WARNING, logger="prophet_scheduler"):
        job._attach()
    assert hook.aside == "the hook cannot take a plan: of another kind"
    assert [record.getMessage() for record in caplog.records] == [
        "Prophet: stepped aside: the hook cannot take a plan: of another kind; the job goes on in BytePS's own order"
    ]


def test_the_agent_leaves_events_and_plans_where_it_was_asked_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook = RecordingHook(1)
    monkeypatch.setattr("prophet_byteps.hook._loaded", None)
    job = job_of(hook, tmp_path / "e.npz")
    job._attach()
    job._finish()
    record = load_record(tmp_path / "e.npz")
    assert (len(record.events), record.watchdog_s, record.most_in_flight) == (1, 2.0, 256)
    assert dict(record.plans) == {0: plan_codec.encode_plan(get_policy("fifo").plan(None, None))}
