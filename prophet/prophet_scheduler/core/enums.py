"""StrEnum, which Python 3.10 lacks."""

from __future__ import annotations

import enum
import sys

if sys.version_info >= (3, 11):
    StrEnum = enum.StrEnum
else:

    class StrEnum(str, enum.Enum):
        """Enumeration of words that are their own text."""

        __str__ = str.__str__
