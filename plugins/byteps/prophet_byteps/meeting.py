"""Meeting of all workers at the start of a job and at its end.

Rule of this file: BytePS's own calls that begin and end it, wrapped. agreement.py compares the workers' settings.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable
from typing import Any

from prophet_byteps import agreement
from prophet_byteps.place import place_of
from prophet_scheduler.core import settings as names
from prophet_scheduler.frontends.ending import at_end, finish_first

EXIT_LIMIT_S = 5.0
"""Maximum wait for workers that have yet to answer, before BytePS or the process ends."""
ending = False
"""True while BytePS ends: its end waits for all workers and servers, and for its scheduler."""

logger = logging.getLogger("prophet_scheduler")


def attend(
    module: Any,
    framework: str,
    terms: str,
    stall_s: float | None,
    begin: Callable[[], None],
    agree_on_pushes: Callable[[Any], None],
) -> None:
    """Make bps.init() return only when all workers have started with the same `terms`, and an elastic resume renew
    agreements. `begin()` is called before BytePS begins and does not raise,
    `agree_on_pushes(module)` when all have met.
    """
    init, resume = module.init, module.resume

    @functools.wraps(init)
    def init_and_agree(*args: Any, **kwargs: Any) -> Any:
        begin()
        at_end(_ended)  # Runs after BytePS's own end, which its init() registers.
        result = init(*args, **kwargs)
        # An asynchronous server answers before all have sent, so workers cannot compare through it.
        if agreement.active() is None and module.size() > 1 and names.in_step(os.environ):
            try:
                from prophet_byteps import exchange

                exchange.agree_on_start(module, framework, terms, stall_s)
                agree_on_pushes(module)
            except Exception as error:
                agreement.activate(None)
                not_compared(error)
        return result

    @functools.wraps(resume)
    def resume_and_agree(*args: Any, **kwargs: Any) -> Any:
        from prophet_byteps import exchange

        result = resume(*args, **kwargs)
        exchange.renew(module)
        agree_on_pushes(module)
        return result

    module.init, module.resume = init_and_agree, resume_and_agree
    finish_first(module, _answer_before_the_end, _ended)


def warn_of_settings() -> None:
    """Warn of unknown variables, on one worker of the job."""
    if place_of(os.environ)[0] == 0:
        from prophet_scheduler.frontends.notices import warn_of_unknown_variables

        warn_of_unknown_variables(os.environ)


def not_compared(error: Exception) -> None:
    """Warn that workers may differ."""
    logger.warning("Prophet cannot compare the workers' settings: %s: %s", type(error).__name__, error)


def _answer_before_the_end() -> None:
    """Answer all workers, since another may still wait for this one."""
    global ending
    try:
        agreement.wait(agreement.at_rest, "all workers", EXIT_LIMIT_S)
    except Exception as error:
        logger.warning("Prophet ended before all workers had answered: %s", error)
    ending = True


def _ended() -> None:
    global ending
    ending = False
    agreement.begin_anew()
