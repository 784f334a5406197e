"""Warnings to the people who train: each once in a process.

What belongs here: saying it, and what is said on every engine. What else is said is the caller's.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

logger = logging.getLogger("prophet")
_warned: set[str] = set()


def warn_once(message: str) -> None:
    """The same warning only once in a process."""
    if message not in _warned:
        _warned.add(message)
        logger.warning("%s", message)


def warn_of_unknown_variables(names: Iterable[str]) -> None:
    """Says which of an environment's names begin as Prophet's do and are none; nothing where there are none."""
    from prophet.policies import unknown_variables

    unknown = unknown_variables(names)
    if unknown:
        said = ", ".join(f"{name} (did you mean {near}?)" if near else name for name, near in unknown.items())
        warn_once(f"Prophet knows nothing of {said}: what is set there has no effect")


def warn_of_untraced(policy: str, why: str) -> None:
    """Says what the policy does without; `why` in a few words."""
    warn_once(f"Prophet has no trace of this model: {why}; {policy} takes its layers to be one after another")
