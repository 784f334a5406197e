"""All pages of results that commands make, made again from what is kept: nothing is measured.

Rule of this file: which pages there are. `make pages` writes them; a test looks that they are what their data gives.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from tools import (
    ablation,
    advise,
    allreduce,
    backlog,
    blocks,
    changing,
    coordinator,
    guard,
    kept,
    memory,
    mlfabric_real,
    overhead,
    papers,
    real_blocks,
    replay,
    results,
    scaling,
    soak_page,
    testbed,
    validate,
)
from tools.exit_status import exit_status

PAGES: Mapping[str, Callable[[Path], str]] = {
    tool.PAGE: tool.page
    for tool in (
        ablation,
        advise,
        allreduce,
        backlog,
        blocks,
        changing,
        coordinator,
        guard,
        memory,
        mlfabric_real,
        overhead,
        papers,
        real_blocks,
        replay,
        results,
        scaling,
        soak_page,
        testbed,
        validate,
    )
}
"""Each page's file, relative to the folder of results, and what makes its text from that folder."""


def main(arguments: list[str] | None = None) -> int:
    """Writes all pages; exit status 2 with one line for an error of the user's."""
    parser = argparse.ArgumentParser(prog="python -m tools.pages", description=__doc__)
    parser.add_argument("--results", type=Path, default=kept.RESULTS, help="folder of the pages and their data")
    options = parser.parse_args(arguments)

    def work() -> int:
        texts = {name: make(options.results) for name, make in PAGES.items()}
        for name, text in texts.items():
            (options.results / name).write_text(text, encoding="utf-8")
        return 0

    return exit_status(work)


if __name__ == "__main__":
    sys.exit(main())
