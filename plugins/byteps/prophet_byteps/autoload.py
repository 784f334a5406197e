"""Autoload: switches Prophet on in a process that imports BytePS with BYTEPS_SCHEDULER set.

Rule of this file: when Prophet is loaded. A line in site-packages (prophet-autoload.pth) imports this module if any of
Prophet's variables is set; one that is misspelt or belongs to another engine causes a warning. The native hook must be
loaded before BytePS's library, and can find BytePS's functions only afterwards. So an import hook wraps BytePS's
modules.

A wrong setting ends the process with one line and status 2. If this worker went on with stock BytePS, its keys would
differ from the rest of the job, which would wait forever. Before it exits it tells the others why (exchange.py). A
failure of Prophet itself causes one warning; agent.py says what still works then. If even the agent cannot be loaded,
this worker runs stock BytePS, and the others exit with a line that says so.
"""

from __future__ import annotations

import functools
import os
import threading
from types import ModuleType
from typing import Any, NoReturn

from prophet_scheduler.frontends.importlib_bootstrap import Execute, around_import
from prophet_scheduler.frontends.notices import logger, speaks, warn_of_no_policy

SCHEDULER = "BYTEPS_SCHEDULER"
FRAMEWORKS = {"byteps.torch": "torch", "byteps.mxnet": "mxnet"}
"""BytePS modules that contain a scheduled queue, and the folder of each one's library."""

_JOB = (
    *(f"DMLC_{name}" for name in ("NUM_WORKER", "NUM_SERVER", "PS_ROOT_URI", "PS_ROOT_PORT", "WORKER_ID")),
    *(f"BYTEPS_LOCAL_{name}" for name in ("RANK", "SIZE")),
)
"""Variables that BytePS needs to start. If one is missing, no other worker waits for this process."""


def _run(framework: str, module: ModuleType, execute: Execute) -> None:
    """Execute BytePS's module, and switch Prophet on around it."""
    if not os.environ.get(SCHEDULER):
        place = [os.environ.get(name) or "0" for name in ("DMLC_WORKER_ID", "BYTEPS_LOCAL_RANK")]
        speaks(place == ["0", "0"])
        warn_of_no_policy(SCHEDULER, "BytePS", os.environ)
        execute(module)
        return
    job: Any = None
    try:
        from prophet_scheduler.core.errors import UserError

        try:
            job = _prepare(framework)
        except UserError as error:
            _refuse(framework, module, execute, str(error))
    except Exception as error:
        logger.warning("Prophet stays off: %s; this job runs with stock BytePS", error)
    execute(module)
    if job is None:
        return
    try:
        job.start(module)
    except Exception as error:
        job.step_aside(f"{type(error).__name__}: {error}")


def _refuse(framework: str, module: ModuleType, execute: Execute, why: str) -> NoReturn:
    """Exit because of a wrong setting: print one line at once, then tell the workers that would wait for this one."""
    from prophet_scheduler.core.settings import in_step
    from prophet_scheduler.frontends.ending import WRONG, end_process, say

    say(why)
    try:
        # An asynchronous server answers before all workers have sent, so nothing can be compared through it.
        others = all(os.environ.get(name) for name in _JOB) and os.environ["DMLC_NUM_WORKER"] != "1"
        if others and in_step(os.environ):
            from prophet_byteps.agreement import START_LIMIT_S
            from prophet_byteps.exchange import refuse_to_start

            limit = threading.Timer(START_LIMIT_S, end_process, ("", WRONG))
            limit.daemon = True
            limit.start()
            # BytePS reads this variable at start, and it may be the wrong setting.
            os.environ["BYTEPS_PARTITION_BYTES"] = "4096000"
            execute(module)
            refuse_to_start(module, framework, why)
    finally:
        end_process("", WRONG)


def _prepare(framework: str) -> Any:
    """Return the agent that BYTEPS_SCHEDULER selects, as Agent or one like it. Raises UserError for a wrong setting."""
    from prophet_scheduler import plugins
    from prophet_scheduler.core.errors import UserError

    if line := plugins.absent(framework):
        raise UserError(line)
    of_plugin = plugins.load(plugins.AGENTS, os.environ[SCHEDULER].strip().lower())
    if of_plugin is not None:
        return of_plugin.prepare(framework, os.environ)
    from prophet_byteps.agent import Agent

    return Agent.prepare(framework, os.environ)


for _name, _framework in FRAMEWORKS.items():
    around_import(_name, functools.partial(_run, _framework))
