"""Meeting of all workers at the start of a job and at its end.

Rule of this file: wrappers of the calls that start and end BytePS. agreement.py compares the workers' settings.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

from prophet_byteps import agreement
from prophet_scheduler.core import settings as names
from prophet_scheduler.frontends.ending import at_end, ends_at_once, finish_first, has_failed
from prophet_scheduler.frontends.notices import logger

EXIT_LIMIT_S = 5.0
"""Maximum seconds to wait for pages that are still in flight once all workers are at their end."""
FAILED_PATIENCE_S = 0.5
"""The same for a program that has ended with an exception. It needs nothing more, and answers may never come."""
ending = False
"""True while BytePS shuts down and, before, while this worker waits for all others to be at their end as well."""


def attend(
    module: Any,
    framework: str,
    terms: str,
    stall_s: float | None,
    begin: Callable[[], None],
    agree_on_pushes: Callable[[Any], None],
) -> None:
    """Make bps.init() return only when all workers have started with the same `terms`, and make an elastic resume renew
    their agreements. `begin()` is called before BytePS starts and does not raise; `agree_on_pushes(module)` is called
    when all have met.
    """
    init, resume = module.init, module.resume

    @functools.wraps(init)
    def init_and_agree(*args: Any, **kwargs: Any) -> Any:
        begin()
        at_end(_ended)  # Runs after BytePS's own shutdown, which its init() registers.
        result = init(*args, **kwargs)
        # An asynchronous server answers before all workers have sent, so they cannot compare anything through it.
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


def not_compared(error: Exception) -> None:
    """Warn that differences between workers go unnoticed."""
    logger.warning("Prophet cannot compare the workers' settings: %s: %s", type(error).__name__, error)


def _answer_before_the_end() -> None:
    """Wait until all workers are at their end, as BytePS's own shutdown does: a late one may yet send what this one
    needs, and after that nobody sends anything more. Then wait until no page is in flight, since another worker may
    need this one's answer.
    """
    global ending
    ending = True
    try:
        group = agreement.active()
        if group is not None and not ends_at_once():
            group.leave()
            agreement.wait(group.all_leave, "all workers to be at their end")
        agreement.wait(agreement.at_rest, "all workers", FAILED_PATIENCE_S if has_failed() else EXIT_LIMIT_S)
    except Exception as error:
        logger.warning("Prophet ended before all workers had answered: %s", error)


def _ended() -> None:
    global ending
    ending = False
    group = agreement.active()
    if group is not None:
        group.ended()
