"""Replays of ResNet-50's gradients on slow networks: running them, and keeping them for their page.

Rule of this file: running configs/replay-resnet50.yaml (`make replay`, about 25 minutes on a quiet machine) and
configs/sweep-bytescheduler.yaml (`--sweep`, about half an hour a repeat); the page is replay_page.py's.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from prophet_scheduler.lab.config import load_experiment
from prophet_scheduler.lab.records import RESULTS_FILE, read_results
from prophet_scheduler.lab.session import run_session
from tools import kept
from tools.command_line import exit_status, page_parser
from tools.kept import Study
from tools.replay_page import COSTS, PAGE, REPLAY, SWEEP, page

CONFIGS = Path("configs")
FIGURES = {"iteration-times.png": "replay-resnet50.png", "transfers-0.png": "replay-resnet50-transfers.png"}
"""Files of a run, and their names beside the page."""


def run(name: str, out: Path, results: Path, repeats: int | None) -> None:
    """Run one config, keep it and write the page. Raises UserError and OSError."""
    experiment = load_experiment(CONFIGS / f"{name}.yaml", repeats=repeats)
    run_session(experiment, out / name)
    data = kept.study_of(experiment, read_results(out / name / RESULTS_FILE))
    if name == REPLAY:
        for file, called in FIGURES.items():
            shutil.copyfile(out / name / file, results / called)
    kept.publish(results, name, Study, data, PAGE, page, replaces=(COSTS,) if name == REPLAY else ())


def main(arguments: list[str] | None = None) -> int:
    """Run and write the page; exit status 2 with one line for an error of the user's."""
    parser = page_parser("replay", __doc__)
    parser.add_argument("--out", type=Path, default=Path("build/replay"), help="folder for the runs")
    parser.add_argument("--sweep", action="store_true", help="ByteScheduler's settings in place of the policies")
    parser.add_argument("--repeats", type=int, help="in place of the config's")
    options = parser.parse_args(arguments)

    def work() -> int:
        run(SWEEP if options.sweep else REPLAY, options.out, options.results, options.repeats)
        return 0

    return exit_status(work)


if __name__ == "__main__":
    sys.exit(main())
