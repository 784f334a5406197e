"""The options of a config's policies: from the keys of an entry to variables of a job's environment.

What belongs here: checking the keys that a policy's own file declares (policies/), and making every combination of
lists. No code here knows a policy by name.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.units import format_size, parse_size
from prophet_scheduler.policies import Option, all_definitions


@dataclass(frozen=True)
class VariedSetting:
    """Variable with its values, each with its label in a policy's name."""

    variable: str
    choices: Sequence[tuple[str, str]]


def size_setting(variable: str, sizes: Sequence[int]) -> VariedSetting:
    """Return the setting of a variable to sizes in bytes."""
    return VariedSetting(variable, [(str(size), format_size(size)) for size in sizes])


def option_settings(base: str, keys: Mapping[str, object], others: Collection[str], at: str) -> list[VariedSetting]:
    """Return the settings from `keys` of the entry `at` for the policy `base`; a list has several values.

    `others` are the keys of every entry. Raises UserError if a key is no option of this policy, or a value is wrong.
    """
    definitions = all_definitions()
    options = {option.name: option for option in definitions[base].all_options} if base in definitions else {}
    for key in keys:
        if key in options:
            continue
        owners = [name for name, entry in definitions.items() if key in {option.name for option in entry.all_options}]
        if owners:
            raise UserError(f"{at}: {key} is a setting of {', '.join(owners)}, not of {base}; leave it out")
        raise UserError(f"{at}.{key}: unknown key; the keys here are {', '.join([*others, *options])}")
    return [_setting(option, keys[name], f"{at}.{name}") for name, option in options.items() if name in keys]


def refuse_tuning(base: str, keys: Collection[str], at: str) -> None:
    """Raise UserError if the policy `base` has nothing to tune, or `keys` of the entry set what tuning chooses."""
    definitions = all_definitions()
    tuned = definitions[base].tuned if base in definitions else ""
    if not tuned:
        owners = ", ".join(name for name, entry in definitions.items() if entry.tuned)
        raise UserError(f"{at}: tune is a setting of {owners}, not of {base}; leave it out")
    if not {tuned, "partition_bytes"}.isdisjoint(keys):
        raise UserError(f"{at}: tune chooses {tuned} and partition_bytes; leave them out, or leave out tune")


def combinations(settings: Sequence[VariedSetting]) -> Iterator[tuple[dict[str, str], str]]:
    """Yield each choice of one value a setting, as variables, and the suffix of the policy's name ("" for none)."""
    named = any(len(setting.choices) > 1 for setting in settings)
    for chosen in itertools.product(*(setting.choices for setting in settings)):
        label = "".join(f"-{label}" for _, label in chosen) if named else ""
        yield {setting.variable: value for setting, (value, _) in zip(settings, chosen, strict=True)}, label


def _setting(option: Option, value: object, at: str) -> VariedSetting:
    values = value if isinstance(value, list) else [value]
    if not values:
        raise UserError(f"{at}: is an empty list; give it a value")
    if option.unit == "bytes":
        try:
            setting = size_setting(option.variable, [parse_size(item) for item in values])
        except ValueError as error:
            raise UserError(f"{at}: {error}") from None
    else:
        setting = VariedSetting(option.variable, [(_text(option, item, at),) * 2 for item in values])
    for text, _ in setting.choices:
        option.parse(text, at)
    return setting


def _text(option: Option, value: object, at: str) -> str:
    """Return a config's value as text for a variable."""
    if isinstance(option.default, bool):
        right, wanted = isinstance(value, bool), "true or false"
    elif isinstance(option.default, int):
        right, wanted = isinstance(value, int) and not isinstance(value, bool), "a whole number"
    else:
        right, wanted = isinstance(value, int | float) and not isinstance(value, bool), "a number"
    if not right:
        raise UserError(f"{at}: it must be {wanted}, not {value!r}")
    return str(int(value)) if isinstance(value, bool) else str(value)
