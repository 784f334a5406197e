"""The agent: learns and plans while the job runs, in one thread beside it.

Rule of this file: the edges (thread, clock, files, NIC counters) around a pure Learner. Once a second it
drains the hook's events, hands them to the Learner, and swaps in the plan where there is a new one.
Whatever goes wrong in here is one warning, and from then on BytePS runs in order of arrival.
"""

from __future__ import annotations

import atexit
import dataclasses
import importlib
import json
import logging
import os
import threading
import time
from collections import deque
from collections.abc import MutableMapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from prophet.plugins.byteps import hook as hook_module
from prophet.plugins.byteps.hook import Hook, HookError, Library

from prophet import settings as names
from prophet.bandwidth import interface_towards, sample_nic
from prophet.errors import UserError
from prophet.learner import DRAIN_S, Learner
from prophet.policies import get_policy
from prophet.profiles import save_profile
from prophet.settings import Settings, from_environ

EVENTS_KEPT = 2_000_000
"""Newest events kept for PROPHET_EVENTS_OUT (24 bytes each)."""

FORWARD_IDS = ("mxnet",)
"""Frameworks whose ids are taken for forward order as they are: what becomes ready at about the same time, MXNet's
threads hand over in any order."""

logger = logging.getLogger("prophet")


class Job:
    """Prophet in one worker process."""

    def __init__(self, framework: str, settings: Settings, library: Library, hook: Hook, learner: Learner) -> None:
        self._framework = framework
        self._settings = settings
        self._library = library
        self._hook = hook
        self._learner = learner
        self._interface: str | None = None
        self._stop = threading.Event()
        self._aside = ""
        self._busy_s = 0.0
        self._plans = 0
        self._kept: deque[NDArray[Any]] = deque()
        self._kept_count = 0
        self._released = 0

    @classmethod
    def prepare(cls, framework: str, environ: MutableMapping[str, str]) -> Job:
        """Checks everything and loads the hook, before BytePS's library is loaded.

        Raises UserError or HookError, with one line, where this job must run with stock BytePS.
        """
        settings = from_environ(environ)
        partition_bytes = int(environ.get(names.BYTEPS_PARTITION_BYTES, settings.partition_bytes))
        policy = get_policy(settings.policy, settings.credit_bytes, partition_bytes)
        library = hook_module.find_library(framework)
        hook = Hook.load()
        # BytePS reads the partition size once, when it starts.
        environ[names.BYTEPS_PARTITION_BYTES] = str(partition_bytes)
        learner = Learner(policy, settings.monitor_s, forward_ids=framework in FORWARD_IDS)
        return cls(framework, settings, library, hook, learner)

    def start(self, module: ModuleType) -> None:
        """Takes over the queues of the BytePS module just imported, and starts to learn."""
        self._hook.attach(self._library, self._settings.watchdog_s)
        hook_module.set_loaded(self._hook)
        self._hook.set_plan(self._learner.plan)
        front_end = importlib.import_module(f"prophet.plugins.byteps.{self._framework}")
        front_end.install(module, fusion=self._settings.fusion)
        scheduler_host = os.environ.get("DMLC_PS_ROOT_URI")
        self._interface = interface_towards(scheduler_host) if scheduler_host else None
        atexit.register(self._finish)
        threading.Thread(target=self._run, name="prophet-agent", daemon=True).start()

    def step_aside(self, why: str) -> None:
        """One warning, and BytePS in order of arrival from here on."""
        if not self._aside:
            self._aside = why
            logger.warning("Prophet stepped aside: %s; the job goes on in BytePS's own order", why)
        self._hook.step_aside(why)

    def _run(self) -> None:
        while not self._stop.wait(DRAIN_S):
            before = time.thread_time()
            try:
                self._turn()
            except Exception as error:
                self.step_aside(f"{type(error).__name__}: {error}")
                return
            finally:
                self._busy_s += time.thread_time() - before

    def _turn(self) -> None:
        events = self._hook.drain()
        self._keep(events)
        now = time.monotonic()
        nic = sample_nic(self._interface, now) if self._interface else None
        plan = self._learner.turn(now, events, nic)
        if plan is not None:
            self._hook.set_plan(plan)
            self._plans += 1
        status = self._hook.status()
        if status.why_aside and not self._aside:
            self.step_aside(status.why_aside)
        if status.watchdog_releases > self._released:
            if self._released == 0:
                logger.warning(
                    "Prophet released a task that had been held for %g s with nothing moving; "
                    "the network or another worker may have stalled",
                    self._settings.watchdog_s,
                )
            self._released = status.watchdog_releases

    def _keep(self, events: NDArray[Any]) -> None:
        if self._settings.events_out is None or not len(events):
            return
        self._kept.append(events)
        self._kept_count += len(events)
        while self._kept_count > EVENTS_KEPT:
            self._kept_count -= len(self._kept.popleft())

    def _finish(self) -> None:
        """Writes what was asked for; a failure here is a warning, never a failed job."""
        self._stop.set()
        try:
            self._keep(self._hook.drain())
            out = self._settings
            profile = self._learner.profiler.profile
            if out.profile_out is not None and profile is not None:
                save_profile(profile, out.profile_out, source="learned by Prophet from a running job")
            if out.events_out is not None and self._kept:
                np.save(out.events_out, np.concatenate(self._kept))
            if out.status_out is not None:
                self._write_status(out.status_out)
        except (OSError, UserError) as error:
            logger.warning("Prophet could not write its records: %s", error)

    def _write_status(self, path: Path) -> None:
        learner = self._learner
        network = learner.monitor.network
        record = {
            "policy": self._settings.policy,
            "stepped_aside": self._aside,
            "plans": self._plans,
            "agent_cpu_s": self._busy_s,
            "partition_bytes": int(os.environ.get(names.BYTEPS_PARTITION_BYTES, "0")),
            "push_credit": learner.plan.push.credit,
            "pull_credit": learner.plan.pull.credit,
            "deadlines": [dataclasses.asdict(deadline) for deadline in learner.plan.push.deadlines],
            "network": dataclasses.asdict(network) if network else None,
            "hook": dataclasses.asdict(self._hook.status()),
        }
        path.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


__all__ = ["HookError", "Job"]
