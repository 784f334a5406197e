"""Measurements whose data is kept for the pages of results: `python -m tools.measure NAME [KEY=VALUE...]`.

Rule of this file: the list of measurements, and keeping their data. A measurement is a function: it gets a folder for
its work, the folder of results, and options, and returns the data to keep, if any. Those that only run a config are
studies (studies.py). All but the simulated ones need a quiet machine. Most can be interrupted.
"""

from __future__ import annotations

import importlib
import sys
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from prophet_scheduler.cli.options import exit_status
from prophet_scheduler.core.errors import UserError
from tools import kept, studies

MEASUREMENTS: Mapping[str, str] = {
    "baselines": "baselines.measure",
    "bench": "bench.measure",
    "changing": "changing.measure",
    "gpu": "gpu.measure",
    "guard": "guard.measure",
    "map": "gain_map.measure",
    "mlfabric": "mlfabric_cells.measure",
    "mlfabric-simulated": "mlfabric_cells.simulate",
    "observed": "observed.measure",
    "operations": "testbed.operations",
    "papers": "papers.measure",
    "profiles": "record.measure",
    "regret": "regret.measure",
    "screenshots": "screenshots.measure",
    "soak": "soak.measure",
    "testbed": "testbed.links",
    "traces": "public_traces.measure",
    "watching": "overhead.measure",
    "simulated-again": "studies.simulate_again",
}
"""Function of each measurement but the studies, by name of its data."""
NAMES = (*MEASUREMENTS, *studies.STUDIES)


def options_of(measure: Any, given: Sequence[str]) -> dict[str, Any]:
    """Parse options KEY=VALUE, each with the type of its default. Raises UserError."""
    known = measure.__kwdefaults__ or {}
    options = {}
    for text in given:
        key, _, value = text.partition("=")
        if key not in known:
            raise UserError(f"{text}: its options are {', '.join(known) or 'none'}, as KEY=VALUE")
        try:
            options[key] = type(known[key])(value)
        except ValueError as error:
            raise UserError(f"{text}: {error}") from None
    return options


def function_of(name: str) -> Any:
    """Return the function of a measurement or study."""
    if name in studies.STUDIES:
        return studies.measurement(name)
    module, _, function = MEASUREMENTS[name].partition(".")
    return getattr(importlib.import_module(f"tools.{module}"), function)


def main(arguments: list[str] | None = None) -> int:
    """Measure and keep. A user's error is one line and exit status 2."""
    parser = kept.page_parser("measure", __doc__)
    parser.add_argument("name", choices=NAMES, metavar="NAME", help=", ".join(sorted(NAMES)))
    parser.add_argument("options", nargs="*", metavar="KEY=VALUE", help="options, if not the measurement's defaults")
    parser.add_argument("--out", type=Path, help="folder for its work; default: build/NAME")
    options = parser.parse_args(arguments)

    def work() -> int:
        measure, out = function_of(options.name), options.out or Path("build", options.name)
        data = measure(out, options.results, **options_of(measure, options.options))
        kind = typing.get_type_hints(measure)["return"]
        if kind is not type(None):
            kept.keep(options.results, options.name, kind, data)
        return 0

    return exit_status(work)


if __name__ == "__main__":
    sys.exit(main())
