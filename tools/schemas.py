"""The JSON schemas of the files that other programs may read: docs/schemas/.

Rule of this file: from the types of prophet_scheduler/lab/records.py to files. `make schemas` writes them, and a test
looks that they are those of the types.
"""

from __future__ import annotations

import json
from pathlib import Path

from prophet_scheduler.lab.records import RECORDS

FOLDER = Path("docs/schemas")


def schemas() -> dict[str, str]:
    """Return the text of each schema by the name of its file."""
    return {
        f"{name}.json": json.dumps(adapter.json_schema(by_alias=True), indent=2, sort_keys=True) + "\n"
        for name, adapter in RECORDS
    }


if __name__ == "__main__":
    for name, text in schemas().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
