"""Common parts of command lines: numbers in options, and the exit status and one line for an error.

What belongs here: what is not about one command. core/units.py parses rates and times.
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable

from prophet_scheduler.core.errors import UserError


def parsed(option: str, text: str, parse: Callable[[object], float]) -> float:
    """Return the value of a rate or a time. Raises UserError naming the option."""
    try:
        return parse(text)
    except ValueError as error:
        raise UserError(f"{option}: {error}") from None


def exit_status(work: Callable[[], int]) -> int:
    """Return the result of `work`. A user's error is one line on standard error and status 2, an interruption 130."""
    try:
        return work()
    except UserError as error:
        said = " ".join(str(error).splitlines())  # a name in it may have line breaks
    except MemoryError:
        said = f"not enough memory for: {' '.join(sys.argv[1:])}"
    except OSError as error:  # a path that cannot even be examined: too long, or in an inaccessible folder
        if error.filename is None and error.errno != errno.ENOSPC:  # not the user's mistake
            raise
        said = f"{error.filename or 'its output'}: cannot be used ({error.strerror})"
    except KeyboardInterrupt:
        return 130
    print(f"prophet: {said}", file=sys.stderr)
    return 2
