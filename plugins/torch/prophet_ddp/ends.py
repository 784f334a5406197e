"""End of process groups or the process while averages are still under way.

Rule of this file: how long this rank goes on for the others, and if its status reports a failure.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterable

from prophet_ddp.issuer import Issuer
from prophet_ddp.rounds import ModuleRounds
from prophet_scheduler.frontends.ending import fail_at_end, say
from prophet_scheduler.frontends.torch import guards as torch_guards
from prophet_scheduler.frontends.torch.threads import OWN

FAILED_PATIENCE_S = 5.0
"""Seconds without progress that a failing process goes on, once, for other ranks that may want its data."""
STILL_LIMIT_S = 2.0
"""Seconds that the end of the process waits for operations that fail together."""

issuers: list[Issuer] = []
"""Issuers of all modules, also of those that are gone while their last averages are under way."""


def close_gone() -> None:
    """End the groups of modules that are gone, with their threads and connections, before another module's group is
    made. What other ranks still want of this one has left it. Gloo checks every ten milliseconds if it is to end, so
    nobody waits for that.
    """
    torch_guards.forget_dropped()
    for issuer in [issuer for issuer in issuers if issuer.over and issuer.groups.closing is None]:
        issuers.remove(issuer)
        threading.Thread(target=issuer.close, name=f"{OWN}closes").start()


def process_ends() -> None:
    """Send what other ranks may still wait for, as they would for a backward pass that has ended.

    An average that the program never waited for may fail here. torch would have raised that in backward, so the exit
    status reports it.
    """
    failing = _failing()
    patience_s = FAILED_PATIENCE_S if failing else None
    for issuer in issuers:
        try:
            if not issuer.quiet(patience_s):
                patience_s = 0.0
        except Exception as error:
            if not failing:
                say(f"the last averages of this rank never came: {error}")
                fail_at_end(1)
        # Python takes its interpreter apart next, and no thread of torch's must call into it then.
        if issuer.still(STILL_LIMIT_S):
            issuer.close()


def _failing() -> bool:
    """True if the program ends by an exception: others may be in no state to take this rank's data."""
    return sys.exc_info()[1] is not None or getattr(sys, "last_value", None) is not None


def finish(modules: Iterable[ModuleRounds]) -> None:
    """Finish everything under way when groups end: other ranks may wait for it, and updates of this one's `modules` do.

    Raises what torch would have raised in backward, unless the program ends by another exception already.
    """
    failing = _failing()
    patience_s = FAILED_PATIENCE_S if failing else None
    try:
        for issuer in issuers:
            if not issuer.quiet(patience_s):
                patience_s = 0.0
                issuer.fail(RuntimeError(f"the process group ended, and nothing came for {FAILED_PATIENCE_S:g} s"))
        for rounds in modules:
            rounds.flush()
    except Exception:
        if not failing:
            raise


def give_up() -> None:
    """Abort groups, for a program that would not wait any longer. A thread that waits for an average stops as well."""
    for issuer in issuers:
        with contextlib.suppress(Exception):
            if not issuer.quiet(0.0):
                issuer.fail(RuntimeError("the process group was aborted"))
