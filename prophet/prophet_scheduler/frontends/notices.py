"""Warnings for users: each once per process, or once per job if all ranks would say the same.

What belongs here: how to issue a warning, and the warnings common to all engines. Callers supply other texts.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator, Mapping

from prophet_scheduler.frontends.ending import raise_if_handlers

PREFIX = "Prophet: "
logger = logging.getLogger("prophet_scheduler")
_warned: set[str] = set()
_first: bool | None = None
"""True if this process is the first rank of a module. None if no other ranks are known."""


class _Prefix(logging.Filter):
    """Filter that begins each line with Prophet's name, wherever in Prophet it comes from."""

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        if not text.startswith(PREFIX):
            record.msg, record.args = PREFIX + text.removeprefix("Prophet "), ()
        return True


logger.addFilter(_Prefix())


def speaks(first: bool) -> None:
    """Set whether this rank is the `first` of several that train a module. The first speaks for all."""
    global _first
    _first = first or bool(_first)


def warn_once(message: str, of_this_rank: bool = False) -> None:
    """Warn once per process, and only on the first rank unless the message is `of_this_rank`."""
    if message not in _warned and (of_this_rank or _first is not False):
        _warned.add(message)
        logger.warning("%s", message)


@contextlib.contextmanager
def warning_instead(text: str) -> Iterator[None]:
    """Warn of an error within the context, after this text, and go on behind it. A signal handler's is raised."""
    try:
        yield
    except Exception as error:
        raise_if_handlers(error)
        logger.warning("%s: %s: %s", text, type(error).__name__, error)


def warn_of_unknown_variables(names: Iterable[str]) -> None:
    """Warn about environment variables with Prophet's prefix that Prophet does not know."""
    from prophet_scheduler.policies import unknown_variables

    unknown = unknown_variables(names)
    if unknown:
        said = ", ".join(f"{name} (did you mean {near}?)" if near else name for name, near in unknown.items())
        warn_once(f"Prophet knows nothing of {said}: what is set there has no effect")


def warn_of_no_policy(own: str, engine: str, environ: Mapping[str, str]) -> None:
    """Warn in a job without `own`, the variable that enables Prophet for this engine, if it sets another engine's
    variable or a misspelt one instead.
    """
    from prophet_scheduler.core.settings import DDP_SCHEDULER, SCHEDULER

    for other in {SCHEDULER, DDP_SCHEDULER} - {own}:
        if environ.get(other):
            warn_once(f"Prophet stays off: {other} is set, and for {engine} it is {own} that switches Prophet on")
    warn_of_unknown_variables(environ)


def warn_of_untraced(policy: str, why: str) -> None:
    """Warn that the policy has no trace to use; `why` in a few words."""
    warn_once(f"Prophet has no trace of this model: {why}; {policy} assumes its layers run one after another")
