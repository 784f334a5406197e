"""StrEnum, which Python 3.10 lacks."""

from __future__ import annotations

import enum
import sys

if sys.version_info >= (3, 11):
    StrEnum = enum.StrEnum
else:

    class StrEnum(str, enum.Enum):
        """Enumeration whose members are strings and print as their value."""

        __str__ = str.__str__
