"""The command lines of the tools: the option that all with a page have, and how they end.

Rule of this file: what every tool's command line has alike. A mistake of the user's is one line and status 2, an
interruption status 130; what a tool does is its own.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from prophet_scheduler.core.errors import UserError
from tools.kept import RESULTS


def page_parser(name: str, about: str | None) -> argparse.ArgumentParser:
    """For `python -m tools.NAME`, which makes a page of results."""
    parser = argparse.ArgumentParser(prog=f"python -m tools.{name}", description=about)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the pages and their data")
    return parser


def exit_status(work: Callable[[], int]) -> int:
    """What `work` returns, or the status of what ended it."""
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
