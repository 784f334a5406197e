"""Command lines of the tools: the option that all with a page share, and exit statuses.

Rule of this file: what all tools' command lines have in common. A user's mistake is one line and status 2, an
interruption status 130.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from prophet_scheduler.core.errors import UserError
from tools.kept import RESULTS


def page_parser(name: str, about: str | None) -> argparse.ArgumentParser:
    """Return the argument parser of `python -m tools.NAME`, which makes a page of results."""
    parser = argparse.ArgumentParser(prog=f"python -m tools.{name}", description=about)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the pages and their data")
    return parser


def exit_status(work: Callable[[], int]) -> int:
    """Return the result of `work`, or the status for its error."""
    try:
        return work()
    except UserError as error:
        print(f"prophet: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        if error.filename is None:  # not about a path, so not the user's mistake
            raise
        print(f"prophet: {error.filename}: cannot be used ({error.strerror})", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
