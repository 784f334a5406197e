"""End of the process groups or the process while averages are still in flight.

Rule of this file: how long this rank keeps serving the others, and whether its exit status reports a failure.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable

from prophet_ddp.issuer import Issuer
from prophet_ddp.rounds import ModuleRounds
from prophet_scheduler.frontends.ending import fail_at_end, has_failed, raise_if_handlers, say
from prophet_scheduler.frontends.threads import OWN
from prophet_scheduler.frontends.torch import guards as torch_guards

FAILED_PATIENCE_S = 5.0
"""Seconds without progress, once, after which a failing process stops serving ranks that may want its data."""
STILL_LIMIT_S = 2.0
"""Maximum wait at the end of the process for operations in flight to finish or fail, in seconds."""

issuers: list[Issuer] = []
"""Issuers of all modules, including modules that are gone while their last averages are in flight."""


class PatienceAtEnd:
    """Patience at the end with ranks that may want this one's data. If the program ends with an exception, they may be
    unable to take the data, so all waits in which nothing moves are FAILED_PATIENCE_S together; else there is no limit.
    """

    def __init__(self) -> None:
        self.failing = sys.exc_info()[1] is not None or has_failed()
        self._left_s = FAILED_PATIENCE_S if self.failing else None

    def waits(self, quiet: Callable[[float | None], bool]) -> bool:
        """Return what `quiet` returns when it has waited; False if something may still be wanted."""
        is_quiet = quiet(self._left_s)
        if self.failing and not is_quiet:
            self._left_s = 0.0
        return is_quiet


def close_gone() -> None:
    """Close the groups of modules that are gone, with their threads and connections, before another module's group is
    made. They have sent everything that other ranks still want. Gloo polls for its end every ten milliseconds, so each
    group is closed in a thread that nobody waits for.
    """
    torch_guards.forget_dropped()
    for issuer in [issuer for issuer in issuers if issuer.over and issuer.groups.closing is None]:
        issuers.remove(issuer)
        threading.Thread(target=issuer.groups.close, name=f"{OWN}closes").start()


def process_ends() -> None:
    """Send everything that other ranks may still wait for, as after any backward pass.

    An average that the program never waited for may fail here. torch would have raised the error in backward, so the
    exit status reports it.
    """
    patience = PatienceAtEnd()
    for issuer in issuers:
        try:
            patience.waits(issuer.quiet)
        except Exception as error:
            if not patience.failing:
                say(f"the last averages of this rank never arrived: {error}")
                fail_at_end(1)
        # Python takes its interpreter apart next, and no thread of torch's may call into it then.
        if issuer.still(STILL_LIMIT_S):
            issuer.groups.close()


def finish(modules: Iterable[ModuleRounds]) -> None:
    """Finish everything in flight before groups end: other ranks may wait for it, and so do updates of our `modules`.

    Raises what torch would have raised in backward, unless the program already ends with another exception.
    """
    patience = PatienceAtEnd()
    try:
        for issuer in issuers:
            if not patience.waits(issuer.quiet):
                issuer.fail(RuntimeError(f"the process group ended, and nothing arrived for {FAILED_PATIENCE_S:g} s"))
        for rounds in modules:
            rounds.flush()
    except Exception:
        if not patience.failing:
            raise


def give_up() -> None:
    """Abort groups for a program that does not want to wait. Threads that wait for an average stop as well."""
    for issuer in issuers:
        try:
            if not issuer.quiet(0.0):
                issuer.fail(RuntimeError("the process group was aborted"))
        except Exception as error:
            raise_if_handlers(error)
