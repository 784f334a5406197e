"""How the tools end: a mistake of the user's is one line and status 2, an interruption status 130.

Rule of this file: statuses and that one line; what a tool does is its own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from prophet.core.errors import UserError


def exit_status(work: Callable[[], int]) -> int:
    """What `work` returns, or the status of what ended it."""
    try:
        return work()
    except UserError as error:
        print(f"prophet: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"prophet: {error.filename}: cannot be written ({error.strerror})", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
