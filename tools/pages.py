"""All pages of results that commands make, made again from what is kept: nothing is measured.

Rule of this file: which pages there are. `make pages` writes them; a test looks that they are what their data gives.
"""

from __future__ import annotations

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
    eighth,
    gpu,
    guard,
    memory,
    mlfabric_real,
    operations,
    overhead,
    papers,
    real_blocks,
    replay_page,
    results,
    scaling,
    soak_page,
    testbed,
    validate,
)
from tools.command_line import exit_status, page_parser

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
        eighth,
        gpu,
        guard,
        memory,
        mlfabric_real,
        operations,
        overhead,
        papers,
        real_blocks,
        replay_page,
        results,
        scaling,
        soak_page,
        testbed,
        validate,
    )
}
"""Maker of each page's text from the folder of results, by the page's file relative to that folder."""


def main(arguments: list[str] | None = None) -> int:
    """Write all pages; exit status 2 with one line for an error of the user's."""
    parser = page_parser("pages", __doc__)
    options = parser.parse_args(arguments)

    def work() -> int:
        texts = {name: make(options.results) for name, make in PAGES.items()}
        for name, text in texts.items():
            (options.results / name).write_text(text, encoding="utf-8")
        return 0

    return exit_status(work)


if __name__ == "__main__":
    sys.exit(main())
