"""The policies and their options as text, from what their files say (policies/).

What belongs here: rows and help; the table in docs/enabling.md is made from the same rows by tools/policy_tables.py.
"""

from __future__ import annotations

from prophet_scheduler.policies import Option, all_definitions


def option_rows() -> list[tuple[str, Option]]:
    """(a policy's name, an option of it), in alphabetical order."""
    return [(name, option) for name, entry in all_definitions().items() for option in entry.all_options]


def default_text(option: Option) -> str:
    """The default as its variable would have it."""
    return str(int(option.default)) if isinstance(option.default, bool) else str(option.default)


def meaning(option: Option) -> str:
    """What it sets, and in which unit."""
    return option.help if option.unit in option.help else f"{option.help}, in {option.unit}"


def policies_help() -> str:
    """For `--help`: a line for each policy, and one below it for each of its options."""
    lines = ["Policies of Prophet, for --policy and for a config:"]
    for name, entry in all_definitions().items():
        lines.append(f"{name}: {entry.summary}")
        for option in entry.all_options:
            lines.append(f"- {option.name}: {meaning(option)} (default {default_text(option)})")
    lines.append("An option is a key of a policy in a config, and PROPHET_NAME in a job's environment.")
    return "\n\n".join(lines)
