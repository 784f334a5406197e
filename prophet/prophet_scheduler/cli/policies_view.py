"""Help text about policies and their options, from their definitions (policies/).

What belongs here: rows and help. tools/derived.py makes the table in docs/enabling.md from the same rows.
"""

from __future__ import annotations

from prophet_scheduler.policies import Option, all_definitions


def option_rows() -> list[tuple[str, Option]]:
    """Return pairs (policy name, one of its options), in alphabetical order."""
    return [(name, option) for name, entry in all_definitions().items() for option in entry.all_options]


def default_text(option: Option) -> str:
    """Return the default as its environment variable would hold it."""
    return str(int(option.default)) if isinstance(option.default, bool) else str(option.default)


def meaning(option: Option) -> str:
    """Return the option's help text with its unit."""
    return option.help if option.unit in option.help else f"{option.help}, in {option.unit}"


def policies_help() -> str:
    """Return text for `--help`: a line for each policy, followed by a line for each of its options."""
    lines = ["Policies, for --policy and in a config:"]
    for name, entry in all_definitions().items():
        lines.append(f"{name}: {entry.summary}")
        for option in entry.all_options:
            lines.append(f"- {option.name}: {meaning(option)} (default {default_text(option)})")
    lines.append("Set an option as a key of the policy in a config, or as PROPHET_NAME in a job's environment.")
    return "\n\n".join(lines)
