"""How far off the simulator was in the kept validation runs: the file that `prophet advise` takes its errors from.

Rule of this file: from kept results to prophet_scheduler/lab/simulator-errors.json; nothing is run. `make pages` writes
it, and a test looks that it is what the data gives.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from prophet_scheduler.core.files import write_whole
from prophet_scheduler.lab.simulator_error import FILE
from tools import kept, validate
from tools.allreduce_simulated import cells_of
from tools.command_line import exit_status, page_parser
from tools.kept import Study

STUDIES = (validate.NAME, *(study.NAME for study in validate.ALL_REDUCES))
"""Kept results whose cells were simulated as well."""


def errors_text(results: Path) -> str:
    """Return the file's text, from the data in `results`. Raises UserError."""
    ratios: dict[str, list[float]] = {}
    for name in STUDIES:
        stored = kept.kept(results, name, Study)
        if stored is None:
            continue
        _, study = stored
        for cell, point in zip(cells_of(study), study.points, strict=True):
            times = point.real_and_simulated_s
            for contender in cell.policies:
                if contender.name in times:
                    real_s, simulated_s = times[contender.name]
                    ratios.setdefault(contender.base, []).append(round(real_s / simulated_s, 4))
    lines = [f"  {json.dumps(base)}: {json.dumps(ratios[base])}" for base in sorted(ratios)]
    return '{\n "schema": 1,\n "ratios": {\n' + ",\n".join(lines) + "\n }\n}\n"


def main(arguments: list[str] | None = None) -> int:
    """Write it; exit status 2 with one line for an error of the user's."""
    parser = page_parser("simulator_errors", __doc__)
    parser.add_argument("--out", type=Path, default=FILE)
    options = parser.parse_args(arguments)

    def work() -> int:
        write_whole(errors_text(options.results), options.out)
        return 0

    return exit_status(work)


if __name__ == "__main__":
    sys.exit(main())
