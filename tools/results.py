"""The experiments of Prophet's paper on real engines: runs them and writes the page of results.

Rule of this file: running what is missing, keeping it, and putting the page together; which configs there are is
real_studies.py's. `make results` takes about two hours on a quiet machine with two cores; a config whose results are
there already is not run again, so it can be interrupted. The page is docs/results/real.md.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from pydantic_core import to_jsonable_python

from prophet_scheduler.cli.profiles_view import plot_profile
from prophet_scheduler.core.profile import Profile
from prophet_scheduler.lab.config import load_experiment
from prophet_scheduler.lab.iterations import MEDIANS
from prophet_scheduler.lab.records import RESULTS_FILE, Results, read_results
from prophet_scheduler.lab.session import run_session
from prophet_scheduler.lab.simulated_session import simulate_session
from prophet_scheduler.learn.profiler import FIRST_ESTIMATE, WARM_UP
from prophet_scheduler.models.profiles import load_profile
from tools import kept
from tools.command_line import exit_status, page_parser
from tools.kept import Point, Study
from tools.provenance import here
from tools.real_studies import STUDIES, RealStudy
from tools.real_tables import overheads, patterns

CONFIGS = Path("configs")
PAGE = "real.md"
COMMAND = "make results"
OVERHEADS = "real-overheads"
"""Note on the cost of Prophet, until a study is kept."""

INTRODUCTION = """# The paper's experiments on real engines

Made by `make results`, a part at a time; each part says when and where it was measured. Real here: BytePS
0.2.5.post15, MXNet's KVStore and PyTorch's gloo, gradients, optimizers, and the network (shaped veth pairs between
namespaces on one machine). A *replay* is a real job whose computing is replaced by sleeping; `digits` computes and
learns for real. The narrow link is named in every table. [replay.md](replay.md) has ByteScheduler's sweep and the
longer runs, [papers.md](papers.md) the same tables simulated at the papers' own sizes.
"""

PATTERNS_TITLE = "Fig. 4: the stepwise pattern of real training"
PATTERNS_ABOUT = """Recorded by Prophet's profiler in jobs that train for real (`make profiles`; configs/profiles). Each
profile says in its file what was trained and where."""
PATTERNS_DRAWN = ("gluon-resnet50",)

OVERHEAD_TITLE = "Section 5.4: what Prophet costs"
OVERHEAD_ABOUT = f"""The agent profiles, monitors and plans in a thread of its own; its processor time is given as a
share of training's. Profiling takes no time of its own: the first plan is there after {WARM_UP + FIRST_ESTIMATE}
iterations of the job, which run as they would, and it is refined as more are seen (paper: 50 iterations, 7 to 24.7 s
by model)."""


def data_name(study: RealStudy) -> str:
    """Return the name under which a study is kept."""
    return f"real-{study.name}"


def figure(study: RealStudy, name: str) -> str:
    """Return the file of a study's figure, beside the page."""
    return f"real-{study.name}-{name}"


def pattern_figure(profile: Profile) -> str:
    """Return the file of a profile's figure, beside the page."""
    return f"real-pattern-{profile.name}.png"


def page(results: Path) -> str:
    """Return the page, made from the kept data."""
    names = [data_name(study) for study in STUDIES]
    sections = [INTRODUCTION, kept.basis(results, names) or MEDIANS]
    points: list[Point] = []
    for study in STUDIES:
        sections += [f"## {study.title}", f"`configs/{study.config}`. {study.about}"]
        stored = kept.kept(results, data_name(study), Study)
        if stored is None:
            sections.append(kept.otherwise(results, data_name(study), COMMAND))
            continue
        measured, data = stored
        points += data.points
        sections += [measured.line(), study.tables(data.points), study.remarks(data.points)]
        sections += [f"![{Path(name).stem}]({figure(study, name)})" for name in study.figures]
    profiles = recorded()
    sections += [f"## {PATTERNS_TITLE}", PATTERNS_ABOUT, patterns(profiles)]
    sections += [f"![{profile.name}]({pattern_figure(profile)})" for profile in profiles if drawn(profile)]
    sections += [f"## {OVERHEAD_TITLE}", OVERHEAD_ABOUT]
    sections += [overheads(points) if points else kept.otherwise(results, OVERHEADS, COMMAND)]
    return kept.joined(*sections, kept.note(results, "real-seen"))


def recorded() -> list[Profile]:
    """Return the profiles of configs/profiles."""
    return [load_profile(path) for path in sorted((CONFIGS / "profiles").glob("*.json"))]


def drawn(profile: Profile) -> bool:
    """True if the page has a figure of it."""
    return profile.name in PATTERNS_DRAWN


def measure(study: RealStudy, results: Path, out: Path, *, fresh: bool) -> None:
    """Run one study and keep it, with its figures. One that was run already is kept as it is. Raises UserError."""
    experiment = load_experiment(CONFIGS / study.config)
    folder = out / study.name
    before = None if fresh else kept.kept(results, data_name(study), Study)
    if before is not None and before[1].config == to_jsonable_python(experiment.source):
        return
    run_session(experiment, folder)
    simulated: Results | None = None
    if study.simulated:
        simulate_session(experiment, out / f"{study.name}-simulated")
        simulated = read_results(out / f"{study.name}-simulated" / RESULTS_FILE)
    data = kept.study_of(experiment, read_results(folder / RESULTS_FILE), simulated)
    for name in study.figures:
        shutil.copyfile(folder / name, results / figure(study, name))
    kept.keep(results, data_name(study), Study, data, here(), replaces=(OVERHEADS,))


def main(arguments: list[str] | None = None) -> int:
    """Run what is missing and write the page; exit status 2 with one line for an error of the user's."""
    parser = page_parser("results", __doc__)
    parser.add_argument("--out", type=Path, default=Path("build/results"), help="folder for the runs")
    parser.add_argument("--fresh", action="store_true", help="run everything again")
    parser.add_argument("--only", nargs="+", choices=[study.name for study in STUDIES], help="only these configs")
    options = parser.parse_args(arguments)
    studies = [study for study in STUDIES if options.only is None or study.name in options.only]
    return exit_status(lambda: write_page(studies, options.out, options.results, fresh=options.fresh))


def write_page(studies: Sequence[RealStudy], out: Path, results: Path, *, fresh: bool) -> int:
    """Run what is missing, keep it, and write the page and its figures. Raises UserError and OSError."""
    for study in studies:
        measure(study, results, out, fresh=fresh)
    kept.write_page(results, PAGE, page)
    for profile in recorded():
        if drawn(profile):
            plot_profile(profile, results / pattern_figure(profile))
    return 0


if __name__ == "__main__":
    sys.exit(main())
