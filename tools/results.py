"""The experiments of Prophet's paper on real engines: runs them and writes the page of results.

Rule of this file: which configs make the page, the paper's numbers beside them, and what was scaled. `make results`
takes about two hours on a quiet machine with two cores; a config whose results are there already is not run
again, so it can be interrupted. The page is docs/results/real.md, and its figures are beside it.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from prophet.cli.profiles_view import plot_profile
from prophet.core.errors import UserError
from prophet.core.profile import Profile
from prophet.core.steps import find_steps
from prophet.lab.config import Experiment, load_experiment
from prophet.lab.results import describe_setting
from prophet.lab.session import run_session
from prophet.lab.simulated_session import simulate_session
from prophet.learn.profiler import FIRST_ESTIMATE, WARM_UP
from prophet.models.profiles import load_profile
from tools.exit_status import exit_status
from tools.markdown import table
from tools.papers import FIG_12, HETEROGENEOUS, TABLE_2, TABLE_3

Cell = Mapping[str, Any]
Row = tuple[str, ...]

SCALED = "Bytes and rates are an eighth of the paper's, so times are the paper's."
TWO_WORKERS = f"{SCALED} Two workers, not seven."
BEFORE_REQUESTS_FIRST = (
    "Measured before requests for pulls left ahead of the next push (CHANGELOG), which is worth 0.2 to 2.5% elsewhere."
)


@dataclass(frozen=True)
class Study:
    """One config and what the page says of it. `figures` are files of its results that the page shows."""

    config: str
    title: str
    about: str
    tables: Callable[[Sequence[Cell]], str]
    figures: Sequence[str] = ()
    simulated: bool = False
    """Whether the same config is simulated too, for `tables` to show beside (cells doubled: real, then simulated)."""
    remarks: str = ""
    """What the reader should see in the numbers, of the run that is on the page."""

    @property
    def name(self) -> str:
        return Path(self.config).stem


def policy_rows(cell: Cell) -> list[Row]:
    """All policies of one cell: seconds an iteration, against stock and the bound, and how long gradients are away."""
    rows = []
    bound = cell["lower_bound_s"]
    for name, found in cell["policies"].items():
        if "iteration_s" not in found:
            rows.append((name, "failed: " + found["error"], *["-"] * 6))
            continue
        times, ratio, gradient = found["iteration_s"], cell["ratios"].get(name), found.get("gradient")
        rows.append(
            (
                name,
                f"{times['median']:.3f}",
                f"{times['p10']:.3f}-{times['p90']:.3f}",
                f"{found['samples_per_s']:.1f}",
                "-" if ratio is None else f"{ratio:.2f}",
                "-" if bound is None else f"{times['median'] / bound:.2f}",
                "-" if gradient is None else f"{gradient['total_s'] * 1e3:.0f}",
                f"{found['accuracy']:.1%}" if "accuracy" in found else "-",
            )
        )
    return rows


POLICY_COLUMNS = (
    "policy",
    "iteration (s)",
    "p10-p90",
    "samples/s",
    "times as fast as stock",
    "of the bound",
    "gradient away (ms)",
    "accuracy",
)


def all_cells(cells: Sequence[Cell]) -> str:
    """A table for each cell, each naming its narrow link."""
    parts = []
    for cell in cells:
        bound = "" if cell["lower_bound_s"] is None else f"; lower bound {cell['lower_bound_s']:.3f} s"
        parts.append(f"{describe_setting(cell['setting'])}; narrow link: {cell['narrow_link']}{bound}\n")
        parts.append(table(POLICY_COLUMNS, policy_rows(cell)))
    return "\n".join(parts)


def by_profile(cells: Sequence[Cell]) -> str:
    """Seconds an iteration, a row for each replayed profile."""
    names = list(cells[0]["policies"])
    rows = []
    for cell in cells:
        bound = cell["lower_bound_s"]
        row = [str(cell["setting"]["profile"]), str(cell["narrow_link"]), "-" if bound is None else f"{bound:.3f}"]
        for name in names:
            found = cell["policies"][name]
            row.append(f"{found['iteration_s']['median']:.3f}" if "iteration_s" in found else "failed")
        rows.append(tuple(row))
    return table(("profile", "narrow link", "bound (s)", *(f"{name} (s)" for name in names)), rows)


def beside_paper(
    labels: Sequence[str],
    paper: Mapping[str, Sequence[float | None]],
    names: Mapping[str, str],
    more: Sequence[str] = (),
) -> Callable[[Sequence[Cell]], str]:
    """Samples a second of one worker beside the paper's. `names` says which of our policies stands for the paper's."""

    def tables(cells: Sequence[Cell]) -> str:
        columns = ["setting", "narrow link"]
        columns += [f"{theirs}, {whose}" for theirs in names for whose in ("paper", "here")] + [
            f"{n} with Prophet's partitions, here" for n in more
        ]
        rows = []
        for place, (label, cell) in enumerate(zip(labels, cells, strict=True)):
            row = [label, str(cell["narrow_link"])]
            for theirs, ours in names.items():
                value = paper.get(theirs, (None,) * len(labels))[place]
                row += ["-" if value is None else f"{value:g}", rate(cell, ours)]
            rows.append((*row, *(rate(cell, name) for name in more)))
        return table(columns, rows)

    return tables


def rate(cell: Cell, name: str) -> str:
    """Samples a second of one worker."""
    found = cell["policies"][name]
    return f"{found['samples_per_s'] / cell['workers']:.1f}" if "samples_per_s" in found else "failed"


def worker_counts(cells: Sequence[Cell]) -> str:
    """Real beside simulated, by the number of workers."""
    half = len(cells) // 2
    rows = []
    for real, simulated in zip(cells[:half], cells[half:], strict=True):
        shares = [rate(cell, name) for name in ("prophet", "stock") for cell in (real, simulated)]
        rows.append((str(real["workers"]), str(real["narrow_link"]), *shares))
    return table(
        ("workers", "narrow link", "prophet, real", "prophet, simulated", "stock, real", "stock, simulated"), rows
    )


def overheads(cells: Sequence[Cell]) -> str:
    """What Prophet itself took, and how long until the first iteration was over."""
    rows = []
    for cell in cells:
        for name, found in cell["policies"].items():
            if "agent" in found and name == "prophet":
                stock = cell["policies"].get("stock", {})
                starts = [f"{one['start_s']:.1f}" if "start_s" in one else "-" for one in (found, stock)]
                rows.append((describe_setting(cell["setting"]), f"{found['agent']['cpu_share']:.2%}", *starts))
    return table(("setting", "agent's processor time", "start to first iteration (s)", "the same, stock"), rows)


TWO = {"prophet": "prophet", "bytescheduler": "bytescheduler", "stock": "stock"}
PAPERS = {"prophet": "prophet", "bytescheduler": "bytescheduler-paper", "p3": "p3-paper", "stock": "stock"}
_PLACES_2 = (0, 1, 2, 4, 6)


def _some(values: Mapping[str, Sequence[float | None]], places: Sequence[int]) -> dict[str, list[float | None]]:
    return {name: [numbers[place] for place in places] for name, numbers in values.items()}


STUDIES = (
    Study(
        "peers.yaml",
        "Every scheduler that runs here",
        "Medians of interleaved runs. `stock` is BytePS without Prophet; `p3` and `bytescheduler` are those policies "
        "on Prophet's queue and front end; the others are what their own projects ship, started as they document it.",
        all_cells,
        ("iteration-times.png", "gradients-0.png", "throughput-0.png"),
        remarks="On the replay at 250 Mbit/s prophet is ahead of every peer, in either framework: 1.85 times as fast "
        "as BytePS, 1.8 times as DDP, 1.35 times as MXNet's KVStore (the fastest that does not schedule) and 1.13 "
        "times as MXNet's P3. At 1 Gbit/s computing hides nearly all, and it is within 0.8% of the fastest on both "
        "jobs. In digits one layer has 4.2 of the 4.5 MB, so there is hardly an order to choose. There DDP is 5% "
        "ahead at 250 Mbit/s: its all-reduce is over with the last byte, where a server's answer to the last "
        "partition takes another 4.2 ms, and it has no server to share the two cores with. `p3`, Prophet's queue with "
        "one partition in flight, is up to 1% ahead at 250 Mbit/s: these links catch up with moments that they were "
        "idle ([validation.md](validation.md)), so waiting for each acknowledgement costs it little. `bytescheduler` "
        "keeps 4 MB in flight, which is nearly all that digits has. In MXNet `stock` cannot overlap: its way of "
        "scaling gradients waits for the end of backward.",
    ),
    Study(
        "train-resnet.yaml",
        "ResNets trained for real",
        "Computing is real as well: two workers and the server share two cores, and what an engine computes for itself "
        "is missing to the training.",
        all_cells,
        remarks="With ResNet-18 prophet is ahead of all: 1.88 times as fast as BytePS, 1.19 times as DDP, 1.25 times "
        "as KVStore. With ResNet-50 at 1 Gbit/s not the network is short but the processors. In a run watched for it "
        "each worker's training took 1.65 s of its core in an iteration of 2.3 s, BytePS's threads beside it 0.3 s, "
        "and the server 0.6 s of both; under DDP training took 1.5 s of an iteration of 1.7 s, and gloo 0.1 s. There "
        "prophet halves BytePS's time, and what sends with less processor time is ahead of both. "
        + BEFORE_REQUESTS_FIRST,
    ),
    Study(
        "replay-models.yaml",
        "Six models' patterns",
        "Every model with the same bytes and times, so that what differs is in which order which sizes appear.",
        by_profile,
        remarks="Prophet is within 2 to 5% of the bound and first, but for BERT-base (8%): its embedding, a fifth of "
        "all bytes, is generated last and needed first, so that nothing hides its transfer, and mxnet-p3 is 2% ahead. "
        "Elsewhere prophet is 1.6 to 2.1 times as fast as BytePS and 1.10 to 1.18 times as mxnet-p3.",
    ),
    Study(
        "real/bandwidths.yaml",
        "Table 2: ResNet-50, batch size 64, by bandwidth",
        f"Samples a second of one worker. {TWO_WORKERS} The server's link is as wide for each worker as in the paper.",
        beside_paper(
            [TABLE_2.labels[place] for place in _PLACES_2],
            _some(TABLE_2.paper, _PLACES_2),
            PAPERS,
            ("p3", "bytescheduler"),
        ),
        remarks="Prophet is ahead of both as they are configured in the paper, at every rate. Given Prophet's "
        "partitions, p3 is 3% behind it where the workers' links are narrow, and 0.3 to 0.7% ahead where the server's "
        "is, which catches up with idle moments (as above).",
    ),
    Study(
        "real/batches.yaml",
        "Table 3: by model and batch size, 3 Gbit/s",
        f"Samples a second of one worker. {TWO_WORKERS}",
        beside_paper(TABLE_3.labels, TABLE_3.paper, PAPERS, ("bytescheduler",)),
        remarks="Prophet is first in every row, as in the paper: 12 to 46% ahead of ByteScheduler as configured there "
        "(paper: 1.5 to 36%).",
    ),
    Study(
        "real/slow-worker.yaml",
        "Section 5.3: one slow worker",
        f"Samples a second of one worker. {TWO_WORKERS} The second row is one worker with a fifth of the other's rate.",
        beside_paper(
            ("500 Mbit/s beside 10 Gbit/s", "a fifth"),
            {name: [*values, None] for name, values in HETEROGENEOUS.paper.items()},
            TWO,
        ),
        remarks="Prophet is 22% ahead of ByteScheduler in both rows, where the paper has 2.3%. Its iterations take 9 "
        "to 10% longer than the bound. All workers wait for the slow one's bytes, so what counts is that its link "
        f"never idles and carries first what it is needed for. {BEFORE_REQUESTS_FIRST}",
    ),
    Study(
        "real/workers.yaml",
        "Fig. 12: by number of workers, 10 Gbit/s",
        f"Samples a second of one worker; the paper's are {FIG_12.paper['prophet'][0]} with 2 and "
        f"{FIG_12.paper['prophet'][-1]} with 8. {SCALED} The server has half of the paper's rate for half "
        "of its workers. `simulated` is the same config under `prophet simulate`.",
        worker_counts,
        simulated=True,
        remarks="From three workers on the server's link is the narrow one and stock falls behind, by less than "
        "simulated. Prophet loses 3% with four workers, of which the simulation has 1.6%. " + BEFORE_REQUESTS_FIRST,
    ),
)

INTRODUCTION = """# The paper's experiments on real engines

Made by `make results`. Real here: BytePS 0.2.5.post15, MXNet's KVStore and PyTorch's gloo, gradients, optimizers, and
the network (shaped veth pairs between namespaces on one machine with two cores). A *replay* is a real job whose
computing is replaced by sleeping; `digits` computes and learns for real. The narrow link is named in every table.
[replay.md](replay.md) has ByteScheduler's sweep and the longer runs, [papers.md](papers.md) the same tables simulated
at the papers' own sizes.
"""

PATTERNS_TITLE = "Fig. 4: the stepwise pattern of real training"
PATTERNS_ABOUT = """Recorded by Prophet's profiler in jobs that train for real (`make profiles`; configs/profiles)."""
PATTERNS_DRAWN = ("gluon-resnet50",)
PATTERN_STEPS = 8  # as many are spelled out

OVERHEAD_TITLE = "Section 5.4: what Prophet costs"
OVERHEAD_ABOUT = f"""The agent profiles, monitors and plans in a thread of its own; its processor time is given as a
share of training's. Profiling takes no time of its own: the first plan is there after {WARM_UP + FIRST_ESTIMATE}
iterations of the job, which run as they would, and it is refined as more are seen (paper: 50 iterations, 7 to 24.7 s
by model)."""


def results_of(study: Study, configs: Path, out: Path, *, fresh: bool) -> list[Cell]:
    """The cells of one study, run only where its results are not there or are of another config. Raises UserError."""
    experiment = load_experiment(configs / study.config)
    folder = out / study.name
    results = None if fresh else _read(folder / "results.json")
    if results is None or results["config"] != json.loads(json.dumps(experiment.source)):
        run_session(experiment, folder)
        results = _read(folder / "results.json")
    assert results is not None
    cells = with_workers(results, experiment)
    if study.simulated:
        simulate_session(experiment, out / f"{study.name}-simulated")
        simulated = _read(out / f"{study.name}-simulated" / "results.json")
        assert simulated is not None
        cells += with_workers(simulated, experiment)
    return cells


def with_workers(results: Mapping[str, Any], experiment: Experiment) -> list[Cell]:
    """The cells of results.json, each with its number of workers."""
    pairs = zip(results["cells"], experiment.cells, strict=True)
    return [{**found, "workers": cell.cluster.workers} for found, cell in pairs]


def page(
    found: Sequence[tuple[Study, Sequence[Cell]]], figures: Callable[[Study, str], str], profiles: Sequence[Profile]
) -> str:
    """The page; `figures` gives the file name under which a study's figure lies beside it."""
    sections = [INTRODUCTION]
    made = [study.name for study, _ in found]
    if missing := [f"`configs/{study.config}`" for study in STUDIES if study.name not in made]:
        sections.append(f"Left out when this page was made: {', '.join(missing)}.\n")
    for study, cells in found:
        sections += [f"## {study.title}\n", f"`configs/{study.config}`. {study.about}\n", study.tables(cells)]
        sections += [study.remarks + "\n"] if study.remarks else []
        sections += [f"![{Path(name).stem}]({figures(study, name)})\n" for name in study.figures]
    sections += [f"## {PATTERNS_TITLE}\n", PATTERNS_ABOUT + "\n", patterns(profiles)]
    sections += [f"## {OVERHEAD_TITLE}\n", OVERHEAD_ABOUT + "\n", overheads([c for _, cells in found for c in cells])]
    return "\n".join(sections)


def patterns(profiles: Sequence[Profile]) -> str:
    """The recorded profiles with the steps that the profiler finds in each."""
    rows = []
    for profile in profiles:
        steps = find_steps(profile)
        spans = [f"{step.first}-{step.last}" if step.last > step.first else str(step.first) for step in steps]
        shown = " ".join(f"{{{span}}}" for span in spans[:PATTERN_STEPS])
        rows.append(
            (
                f"`{profile.name}`",
                str(len(profile.gradients)),
                f"{profile.total_bytes / 1e6:.1f}",
                f"{profile.backward_s:.3f}",
                f"{profile.forward_s:.3f}",
                str(len(steps)),
                shown + (" ..." if len(steps) > PATTERN_STEPS else ""),
            )
        )
    columns = ("profile", "gradients", "MB", "backward (s)", "forward (s)", "steps", "which")
    drawn = [profile for profile in profiles if profile.name in PATTERNS_DRAWN]
    return "\n".join([table(columns, rows), *(f"![{one.name}]({pattern_figure(one)})\n" for one in drawn)])


def pattern_figure(profile: Profile) -> str:
    """The file of a profile's figure, beside the page."""
    return f"real-pattern-{profile.name}.png"


def _read(path: Path) -> dict[str, Any] | None:
    try:
        results: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, json.JSONDecodeError) as error:
        raise UserError(f"{path}: cannot be read as results ({error}); remove it") from None
    return results


def main(arguments: list[str] | None = None) -> int:
    """Runs what is missing and writes the page; exit status 2 with one line for an error of the user's."""
    parser = argparse.ArgumentParser(prog="python -m tools.results", description=__doc__)
    parser.add_argument("--configs", type=Path, default=Path("configs"))
    parser.add_argument("--out", type=Path, default=Path("build/results"), help="folder for the runs")
    parser.add_argument("--page", type=Path, default=Path("docs/results/real.md"))
    parser.add_argument("--fresh", action="store_true", help="run everything again")
    parser.add_argument("--only", nargs="+", choices=[one.name for one in STUDIES], help="a page of these configs")
    given = parser.parse_args(arguments)
    studies = [study for study in STUDIES if given.only is None or study.name in given.only]
    return exit_status(lambda: write_page(studies, given.configs, given.out, given.page, fresh=given.fresh))


def write_page(studies: Sequence[Study], configs: Path, out: Path, target: Path, *, fresh: bool) -> int:
    """Runs what is missing, writes the page to `target` and its figures beside it. Raises UserError and OSError."""

    def figure(study: Study, name: str) -> str:
        return f"real-{study.name}-{name}"

    found = [(study, results_of(study, configs, out, fresh=fresh)) for study in studies]
    profiles = [load_profile(path) for path in sorted((configs / "profiles").glob("*.json"))]
    target.write_text(page(found, figure, profiles), encoding="utf-8")
    for profile in profiles:
        if profile.name in PATTERNS_DRAWN:
            plot_profile(profile, target.with_name(pattern_figure(profile)))
    for study in studies:
        for name in study.figures:
            shutil.copyfile(out / study.name / name, target.with_name(figure(study, name)))
    Console().print(f"written to {target}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
