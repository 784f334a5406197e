"""Warnings to the people who train: each once in a process, and in a job where all ranks have the same to say.

What belongs here: saying it, and what is said on every engine. What else is said is the caller's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])
PREFIX = "Prophet: "
logger = logging.getLogger("prophet_scheduler")
_warned: set[str] = set()
_first: bool | None = None
"""Whether this process is the first rank of a module's; None where it is not known to have others."""


class _Prefix(logging.Filter):
    """Lets each line begin with who says it, wherever in Prophet it comes from."""

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        if not text.startswith(PREFIX):
            record.msg, record.args = PREFIX + text.removeprefix("Prophet "), ()
        return True


logger.addFilter(_Prefix())


def speaks(first: bool) -> None:
    """A module is trained by several ranks, of which this is the `first` or is not: the first speaks for all."""
    global _first
    _first = first or bool(_first)


def warn_once(message: str, of_this_rank: bool = False) -> None:
    """The same warning only once in a process; on the first rank alone unless it is `of_this_rank`."""
    if message not in _warned and (of_this_rank or _first is not False):
        _warned.add(message)
        logger.warning("%s", message)


def passed_over(function: F) -> F:
    """A function that stands between the program and torch: what torch warns its caller of has the program's line.

    Python counts no frames of its own importlib when it looks for the caller, and knows them by the name of the file.
    """
    code: Any = function.__code__
    function.__code__ = code.replace(co_filename=f"{code.co_filename} (as importlib._bootstrap)")
    return function


def warn_of_unknown_variables(names: Iterable[str]) -> None:
    """Says which of an environment's names begin as Prophet's do and are none; nothing where there are none."""
    from prophet_scheduler.policies import unknown_variables

    unknown = unknown_variables(names)
    if unknown:
        said = ", ".join(f"{name} (did you mean {near}?)" if near else name for name, near in unknown.items())
        warn_once(f"Prophet knows nothing of {said}: what is set there has no effect")


def warn_of_untraced(policy: str, why: str) -> None:
    """Says what the policy does without; `why` in a few words."""
    warn_once(f"Prophet has no trace of this model: {why}; {policy} takes its layers to be one after another")
