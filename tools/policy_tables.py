"""Tables of policies and of their options in docs/enabling.md, from the policies' files.

Rule of this file: the two tables between their marks; the rest of the page is written by hand.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from prophet_scheduler.cli.policies_view import default_text, meaning, option_rows
from prophet_scheduler.policies import all_definitions
from tools.figures import table

PAGE = Path(__file__).parents[1] / "docs" / "enabling.md"


def policies_table() -> str:
    """Return a row for each name that BYTEPS_SCHEDULER may have, and for none."""
    rows = []
    for name, entry in all_definitions().items():
        page = f" ([page]({entry.page}))" if entry.page else ""
        rows.append((f"`{name}`", entry.summary + page))
    return table(("`BYTEPS_SCHEDULER=`", "what it does"), [*rows, ("unset", "stock BytePS; nothing of Prophet runs")])


def options_table() -> str:
    """Return a row for each option of a policy."""
    rows = [
        (f"`{option.variable}`", f"`{option.name}`", f"`{name}`", default_text(option), meaning(option))
        for name, option in option_rows()
    ]
    return table(("variable", "key in a config", "policy", "default", "meaning"), rows)


def with_tables(page: str) -> str:
    """Return `page` with both tables as they are now. Raises ValueError if a mark is missing."""
    for name, text in (("policies", policies_table()), ("options", options_table())):
        begin, end = f"<!-- {name}: made by tools/policy_tables.py -->\n", f"<!-- end of {name} -->\n"
        start, stop = page.index(begin) + len(begin), page.index(end)
        page = f"{page[:start]}\n{text}\n{page[stop:]}"
    return page


def main() -> None:
    argparse.ArgumentParser(description="Writes the tables of policies into docs/enabling.md.").parse_args()
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
