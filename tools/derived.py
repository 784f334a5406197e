"""Files derived from code and kept results: tables of policies, schemas, the simulator's errors.

Rule of this file: the text of each file. `make pages` writes them; a test checks that they are up to date.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from prophet_scheduler.cli.policies_view import default_text, meaning, option_rows
from prophet_scheduler.lab.advice import ERRORS_FILE
from prophet_scheduler.lab.cluster_config import FSDP2
from prophet_scheduler.lab.records import RECORDS
from prophet_scheduler.policies import all_definitions
from tools import kept
from tools.kept import Study
from tools.observed import WatchedRun
from tools.studies import BESIDE

ROOT = Path(__file__).parents[1]
ENABLING = ROOT / "docs" / "enabling.md"
SCHEMAS = ROOT / "docs" / "schemas"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table with a header, ending in a newline."""
    lines = ["| " + " | ".join(row) + " |" for row in (columns, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(columns), *lines[1:], ""])


def policies_table() -> str:
    """Return a table with a row for each value of BYTEPS_SCHEDULER, and for none."""
    rows = []
    for name, entry in all_definitions().items():
        page = f" ([page]({entry.page}))" if entry.page else ""
        rows.append((f"`{name}`", entry.summary + page))
    return table(("`BYTEPS_SCHEDULER=`", "what it does"), [*rows, ("unset", "stock BytePS; nothing of Prophet runs")])


def options_table() -> str:
    rows = [
        (f"`{option.variable}`", f"`{option.name}`", f"`{name}`", default_text(option), meaning(option))
        for name, option in option_rows()
    ]
    return table(("variable", "key in a config", "policy", "default", "meaning"), rows)


def with_tables(page: str) -> str:
    """Return the text of docs/enabling.md with both tables up to date. Raises ValueError if a mark is missing."""
    for name, text in (("policies", policies_table()), ("options", options_table())):
        begin, end = f"<!-- {name}: made by tools/derived.py -->\n", f"<!-- end of {name} -->\n"
        start, stop = page.index(begin) + len(begin), page.index(end)
        page = f"{page[:start]}\n{text}\n{page[stop:]}"
    return page


def errors_text() -> str:
    """Return the file of the simulator's errors for `prophet advise`, from kept runs. Raises UserError."""
    ratios: dict[str, list[float]] = {}
    for name in BESIDE:
        stored = kept.kept(ROOT / kept.RESULTS, name, Study)
        for cell, point in stored.data.configured() if stored is not None else ():
            times = point.real_and_simulated_s
            for contender in cell.policies:
                if contender.name in times:
                    real_s, simulated_s = times[contender.name]
                    ratios.setdefault(contender.base, []).append(round(real_s / simulated_s, 4))
    watched = kept.kept(ROOT / kept.RESULTS, "observed", list[WatchedRun])
    for each in watched.data if watched is not None else ():
        for change, (predicted, measured) in each.gains.items():
            if each.job.way != "ddp":
                policy = "-prophet" if change == "prophet" else ""
                ratios.setdefault(f"{FSDP2}{policy}", []).append(round(predicted / measured, 4))
    lines = [f" {json.dumps(base)}: {json.dumps(ratios[base])}" for base in sorted(ratios)]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def derived() -> dict[Path, str]:
    schemas = {
        SCHEMAS / f"{name}.json": json.dumps(adapter.json_schema(by_alias=True), indent=2, sort_keys=True) + "\n"
        for name, adapter in RECORDS
    }
    return {**schemas, ENABLING: with_tables(ENABLING.read_text(encoding="utf-8")), ERRORS_FILE: errors_text()}


def main() -> None:
    for path, text in derived().items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
