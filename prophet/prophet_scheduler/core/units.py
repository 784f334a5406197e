"""Rates, sizes and times as people write them: `250mbit`, `10Gbps`, `1 Gb/s`, `25.6MB`, `512KiB`, `5ms`.

Rule of this file: text to numbers and back. Rates are bits per second, sizes bytes, times seconds. A number needs no
unit, but the text of a rate does: nobody means 10 bits per second. k, M and G are powers of 1000. Ki, Mi and Gi, for
sizes only, are powers of 1024.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

_NUMBER = r"(?P<number>[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)"
_RATE = re.compile(_NUMBER + r"\s*(?P<prefix>[kKmMgG]?)(?:[bB]its?(?:/s|ps)?|bps|b/s)")
_SIZE = re.compile(_NUMBER + r"\s*(?P<prefix>[kmg]i?)?b?", re.IGNORECASE)
_TIME = re.compile(_NUMBER + r"\s*(?P<prefix>[mu]?)s?", re.IGNORECASE)
_TIME_FACTORS = {"": 1.0, "m": 1e-3, "u": 1e-6}
MOST_S = 1e6
"""Maximum seconds of a delay, pass or run: 11 days. A larger number is a mistake."""
MOST = 1e30
"""Maximum size in bytes, or rate in bits per second."""
_FACTORS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}


def parse_rate(value: object) -> float:
    """Return bits per second. Raises ValueError, with an example, if `value` is not a rate of at least 1."""
    return _parse(value, _RATE, "a rate; write e.g. 250mbit or 10Gbps")


def parse_size(value: object) -> int:
    """Return bytes. Raises ValueError, with an example, if `value` is not a size of at least 1 byte."""
    return round(_parse(value, _SIZE, "a size; write e.g. 25.6MB or 512KiB"))


def parse_time(value: object) -> float:
    """Return seconds. Raises ValueError, with an example, if `value` is not a time from 0 to MOST_S."""
    number = _number(value, _TIME, _TIME_FACTORS, wanted := "a time; write e.g. 5ms")
    if not 0 <= number <= MOST_S:
        raise ValueError(f"{value!r} is not {wanted}")
    return number


def _parse(value: object, pattern: re.Pattern[str], wanted: str) -> float:
    number = _number(value, pattern, _FACTORS, wanted)
    if number < 1:
        raise ValueError(f"{value!r} is too small for {wanted}")
    if number > MOST:
        raise ValueError(f"{value!r} is too large for {wanted}")
    return number


def _number(value: object, pattern: re.Pattern[str], factors: Mapping[str, float], wanted: str) -> float:
    number = math.nan
    if isinstance(value, str):
        match = pattern.fullmatch(value.strip())
        if match is not None:
            number = float(match["number"]) * factors[(match["prefix"] or "").lower()]
    elif isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= MOST:
        number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{value!r} is not {wanted}")
    return number


def format_rate(bits_per_s: float) -> str:
    """Return a rate such as `250mbit`, in the largest unit that gives at least 1."""
    return _format(bits_per_s, "bit", ("g", "m", "k", ""))


def format_time(seconds: float) -> str:
    """Return a time such as `5ms`, in the largest unit that gives at least 1."""
    prefix = next((p for p, factor in _TIME_FACTORS.items() if seconds >= factor), "u") if seconds else ""
    return f"{seconds / _TIME_FACTORS[prefix]:.4g}{prefix}s"


def format_size(size_bytes: float) -> str:
    """Return a size such as `25.6MB`. Multiples of 1 KiB but not of 1000 bytes use binary units, as in `512KiB`."""
    if size_bytes % 1024 == 0 and size_bytes % 1000 != 0:
        return _format(size_bytes, "B", ("Gi", "Mi", "Ki"))
    return _format(size_bytes, "B", ("G", "M", "k", ""))


def _format(number: float, unit: str, prefixes: tuple[str, ...]) -> str:
    prefix = next((p for p in prefixes if number >= _FACTORS[p.lower()]), prefixes[-1])
    return f"{number / _FACTORS[prefix.lower()]:.4g}{prefix}{unit}"
