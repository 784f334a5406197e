"""Conversion of an option's text to a number.

What belongs here: the one-line error that names the option. core/units.py parses rates and times.
"""

from __future__ import annotations

from collections.abc import Callable

from prophet_scheduler.core.errors import UserError


def parsed(option: str, text: str, parse: Callable[[object], float]) -> float:
    """Return the value of a rate or a time. Raises UserError naming the option."""
    try:
        return parse(text)
    except ValueError as error:
        raise UserError(f"{option}: {error}") from None
