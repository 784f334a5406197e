"""Command lines of the tools: the option that all with a page have, and how they end.

Rule of this file: what every tool's command line has in common. A mistake of the user's is one line and status 2, an
interruption status 130; each tool does its own work.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from prophet_scheduler.core.errors import UserError
from tools.kept import RESULTS


def page_parser(name: str, about: str | None) -> argparse.ArgumentParser:
    """Return the parser of `python -m tools.NAME`, which makes a page of results."""
    parser = argparse.ArgumentParser(prog=f"python -m tools.{name}", description=about)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the pages and their data")
    return parser


def exit_status(work: Callable[[], int]) -> int:
    """Return what `work` returns, or the status of the error that ended it."""
    try:
        return work()
    except UserError as error:
        print(f"prophet: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        if error.filename is None:  # of no path, so nobody's mistake
            raise
        print(f"prophet: {error.filename}: cannot be used ({error.strerror})", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
