"""How the text of an option becomes a number.

What belongs here: that a wrong one is one line which names the option; what a rate or a time is, is
core/units.py's.
"""

from __future__ import annotations

from collections.abc import Callable

from prophet_scheduler.core.errors import UserError


def parsed(option: str, text: str, parse: Callable[[object], float]) -> float:
    """What a rate or a time says. Raises UserError that names the option."""
    try:
        return parse(text)
    except ValueError as error:
        raise UserError(f"{option}: {error}") from None
