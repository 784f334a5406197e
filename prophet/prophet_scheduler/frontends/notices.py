"""Warnings to the people who train: each once in a process, or once in a job where all ranks say the same.

What belongs here: how a warning is said, and the warnings of every engine. Other texts are the caller's.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

PREFIX = "Prophet: "
logger = logging.getLogger("prophet_scheduler")
_warned: set[str] = set()
_first: bool | None = None
"""True if this process is the first rank of a module. None where no other ranks are known."""


class _Prefix(logging.Filter):
    """Filter that puts Prophet's name before each line, wherever in Prophet it comes from."""

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        if not text.startswith(PREFIX):
            record.msg, record.args = PREFIX + text.removeprefix("Prophet "), ()
        return True


logger.addFilter(_Prefix())


def speaks(first: bool) -> None:
    """Set if this rank is the `first` of several that train a module. The first speaks for all."""
    global _first
    _first = first or bool(_first)


def warn_once(message: str, of_this_rank: bool = False) -> None:
    """Warn once in a process. Only the first rank does, unless the message is `of_this_rank`."""
    if message not in _warned and (of_this_rank or _first is not False):
        _warned.add(message)
        logger.warning("%s", message)


def warn_of_unknown_variables(names: Iterable[str]) -> None:
    """Warn of names of an environment that begin as Prophet's do but are unknown."""
    from prophet_scheduler.policies import unknown_variables

    unknown = unknown_variables(names)
    if unknown:
        said = ", ".join(f"{name} (did you mean {near}?)" if near else name for name, near in unknown.items())
        warn_once(f"Prophet knows nothing of {said}: what is set there has no effect")


def warn_of_no_policy(own: str, engine: str, environ: Mapping[str, str]) -> None:
    """Warn in a job without `own`, the variable that switches Prophet on for this engine, of what may be meant by it:
    another engine's variable, or a misspelt one.
    """
    from prophet_scheduler.core.settings import DDP_SCHEDULER, SCHEDULER

    for other in {SCHEDULER, DDP_SCHEDULER} - {own}:
        if environ.get(other):
            warn_once(f"Prophet stays off: {other} is set, and for {engine} it is {own} that switches Prophet on")
    warn_of_unknown_variables(environ)


def warn_of_untraced(policy: str, why: str) -> None:
    """Warn that the policy has no trace to use; `why` in a few words."""
    warn_once(f"Prophet has no trace of this model: {why}; {policy} takes its layers to be one after another")
