"""The JSON schemas of the files that other programs may read: docs/schemas/.

Rule of this file: from the types of prophet_scheduler/lab/records.py to files. `make schemas` writes them, and a test
looks that they are those of the types.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from prophet_scheduler.lab.records import RECORDS
from tools.command_line import exit_status

FOLDER = Path("docs/schemas")


def schemas() -> dict[str, str]:
    """Return the text of each schema by the name of its file."""
    return {
        f"{name}.json": json.dumps(adapter.json_schema(by_alias=True), indent=2, sort_keys=True) + "\n"
        for name, adapter in RECORDS
    }


def main(arguments: list[str] | None = None) -> int:
    """Write all of them."""
    parser = argparse.ArgumentParser(prog="python -m tools.schemas", description=__doc__)
    parser.add_argument("--out", type=Path, default=FOLDER)
    options = parser.parse_args(arguments)

    def work() -> int:
        options.out.mkdir(parents=True, exist_ok=True)
        for name, text in schemas().items():
            (options.out / name).write_text(text, encoding="utf-8")
        return 0

    return exit_status(work)


if __name__ == "__main__":
    sys.exit(main())
