"""The papers' tables, simulated: what each paper measured beside what the simulator gives for the same setting.

Rule of this file: the papers' numbers with their places, the assumptions, and the page made of both. Every config is in
configs/papers/; `make papers` writes docs/results/papers.md anew, in about two minutes. MLfabric, whose cluster is
no config of the simulator, has its part from tools/mlfabric_page.py; what orders are worth is tools/paper_orders.py's.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from prophet.lab.config import load_experiment
from prophet.lab.results import summarize
from prophet.lab.session import progress_bar
from prophet.lab.simulated import prepare_experiment, simulate_experiment
from tools import mlfabric_page, paper_orders
from tools.exit_status import exit_status
from tools.markdown import table

Cells = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Study:
    """One table: the config that simulates it, and a function from its cells to the table's rows."""

    config: str
    title: str
    assumed: str
    columns: tuple[str, ...]
    rows: Callable[[Cells, Sequence[int]], list[Sequence[str]]]
    remarks: str = ""


@dataclass(frozen=True)
class Rates:
    """Samples a second of one worker: the paper's by row and policy, beside the simulated."""

    labels: tuple[str, ...]
    paper: Mapping[str, Sequence[float | None]] = field(default_factory=dict)

    def columns(self, first: str) -> tuple[str, ...]:
        return (first, *(f"{name}, {whose}" for name in self.paper for whose in ("paper", "simulated")))

    def rows(self, cells: Cells, workers: Sequence[int]) -> list[Sequence[str]]:
        table: list[Sequence[str]] = []
        for place, (cell, label, count) in enumerate(zip(cells, self.labels, workers, strict=True)):
            row = [label]
            for name, values in self.paper.items():
                value = values[place]
                row += [
                    "-" if value is None else f"{value:g}",
                    f"{cell['policies'][name]['samples_per_s'] / count:.1f}",
                ]
            table.append(row)
        return table


TABLE_2 = Rates(
    ("1 Gbit/s", "2", "3", "4", "4.5", "6", "10 (not a comparison)"),
    {
        "prophet": (27.7, 47.9, 60, 67.06, 69.29, 69.5, 70.6),
        "bytescheduler": (25.9, 39.09, 44, 50.5, 54.14, 70, 71.1),
        "p3": (25.16, 37.69, 51.22, 64.34, 67.83, 68.93, 72.83),
        "stock": (None,) * 7,
    },
)
TABLE_3 = Rates(
    ("ResNet-18 (16)", "ResNet-18 (64)", "ResNet-50 (16)", "ResNet-50 (32)", "ResNet-50 (64)"),
    {
        "prophet": (32.46, 153, 14.44, 34.8, 60),
        "bytescheduler": (29.06, 115, 14.22, 28.5, 44),
        "p3": (None, 137, None, None, 51.22),
        "stock": (None, 110, None, None, None),
    },
)
HETEROGENEOUS = Rates(("one worker at 500 Mbit/s",), {"prophet": (26.4,), "bytescheduler": (25.8,), "stock": (15.09,)})
FIG_12 = Rates(("2 workers", "4", "6", "8"), {"prophet": (69.94, None, None, 68.83), "stock": (None,) * 4})


@dataclass(frozen=True)
class Gains:
    """How much faster one policy is than others, in percent of training speed; the paper's are ranges or words."""

    labels: tuple[str, ...]
    winner: str
    others: Mapping[str, str]

    def columns(self, first: str) -> tuple[str, ...]:
        return (first, *(f"over {name} (paper: {claim})" for name, claim in self.others.items()))

    def rows(self, cells: Cells, workers: Sequence[int]) -> list[Sequence[str]]:
        def gain(cell: Mapping[str, Any], name: str) -> str:
            times = {policy: found["iteration_s"]["median"] for policy, found in cell["policies"].items()}
            return f"{times[name] / times[self.winner] - 1:+.0%}"

        return [
            (label, *(gain(cell, name) for name in self.others)) for label, cell in zip(self.labels, cells, strict=True)
        ]


FIG_8 = Gains(
    tuple(f"{model}, {workers}" for model in ("ResNet-50", "VGG-16", "Transformer", "Seq2Seq") for workers in (8, 16)),
    "pace",
    {"wfbp": "20 to 36%", "horovod": "3 to 32%", "tictac": "13 to 21%"},
)
FIG_9 = Gains(
    (
        *("ResNet-50, 2 Gbit/s", "6", "12", "20"),
        *("VGG-16, 2 Gbit/s", "12", "20"),
        *("Transformer, 2 Gbit/s", "14", "20"),
        *("Seq2Seq, 2 Gbit/s", "12", "20"),
    ),
    "pace",
    {
        "horovod": "ResNet-50 32% at 6 and about 0 at 20 Gbit/s; VGG-16 up to 32% at 12 and 13% at 20; Transformer 27% "
        "at 14 and 9% at 20; Seq2Seq about 0 at 20; all alike when slow",
        "wfbp": "-",
        "tictac": "-",
    },
)
TICTAC = Gains(
    ("Inception-v3", "ResNet-50", "VGG-16", "AlexNet"),
    "tictac",
    {"fifo": "up to 20% in training, 82% in inference", "tictac-tio": "about 0"},
)


def _caramel_rows(cells: Cells, workers: Sequence[int]) -> list[Sequence[str]]:
    labels = ("Inception-v3, 8 workers", "ResNet-50, 8", "VGG-16, 16")
    return [
        (label, *(f"{policy['processor_utilisation']:.0%}" for policy in cell["policies"].values()))
        for label, cell in zip(labels, cells, strict=True)
    ]


STUDIES = (
    Study(
        "prophet-table2.yaml",
        "Prophet, Table 2: ResNet-50, batch size 64, by bandwidth",
        "Samples a second of one worker. 7 workers and 1 server with 10 Gbit/s (section 5.1 has up to 8 "
        "instances); computing "
        "is the table's fastest cell, 72.83 samples/s, so the last row is no comparison; P3's partitions of 4 "
        "MB are the "
        "paper's, ByteScheduler's are BytePS's own with a credit of four of them.",
        TABLE_2.columns("workers' limit"),
        TABLE_2.rows,
        "Simulated Prophet is ahead of ByteScheduler and P3 in every row; the paper's is behind both at 10 "
        "Gbit/s, and behind "
        "ByteScheduler at 6. From 2 Gbit/s on the simulated server's link, shared by 7 workers, is the narrow "
        "one, so "
        "rates hardly rise. The paper's numbers at 1 to 3 Gbit/s are far below what the bytes allow: 102 MB at "
        "1 Gbit/s take "
        "0.82 s each way, beside 0.88 s of computing, so 64 samples could take 0.9 s and took 2.3 s. What "
        "cost the rest is not in the text, and is not imitated here.",
    ),
    Study(
        "prophet-table3.yaml",
        "Prophet, Table 3: by model and batch size, 3 Gbit/s",
        "Samples a second of one worker. Computing times are those published for the M60 (docs/profiles.md): "
        "measured ones at "
        "batch 16, and for batch 64 the paper's own rate at 10 Gbit/s; batch 32 is half of batch 64. The 137 and 110 "
        "samples/s of P3 and MXNet are from section 5.3. Cluster as in Table 2.",
        TABLE_3.columns("model (batch)"),
        TABLE_3.rows,
        "Prophet is first in every row, as in the paper. The gain over ByteScheduler is 17 to 48% (paper: 1.5 "
        "to 36%) and "
        "does not grow with the batch size as the paper's does; P3, with its partitions of 4 MB, is behind "
        "ByteScheduler here and ahead of it in the paper.",
    ),
    Study(
        "prophet-heterogeneous.yaml",
        "Prophet, section 5.3: one slow worker",
        "Samples a second of one worker. The other workers' rate is not given; 10 Gbit/s assumed.",
        HETEROGENEOUS.columns("setting"),
        HETEROGENEOUS.rows,
        "102 MB at 500 Mbit/s take 1.64 s, so 39 samples/s is the most. The order is the paper's; the lead over "
        "ByteScheduler is 13% where the paper has 2.3%.",
    ),
    Study(
        "prophet-fig12.yaml",
        "Prophet, Fig. 12: by number of workers, 10 Gbit/s",
        "Samples a second of one worker. Computing is 72.83 samples/s; one server with 10 Gbit/s.",
        FIG_12.columns("workers"),
        FIG_12.rows,
        "Prophet stays flat, as in the paper. From 6 workers on the server's link is the narrow one, and stock "
        "BytePS falls behind.",
    ),
    Study(
        "pace-fig8.yaml",
        "PACE, Fig. 8: gain in training speed, 10 Gbit/s",
        "Ring all-reduce; GTX 1080 Ti computing times as published. The numbers of workers are only drawn, and so is "
        "the cost of a small all-reduce: 50 us a step of the ring and 1 ms of negotiation are assumptions. "
        "Transformer and Seq2Seq have the sizes of the paper's table II, and no published times: theirs are their "
        "multiplications at the rate at which VGG-16's were published (docs/profiles.md).",
        FIG_8.columns("model, workers"),
        FIG_8.rows,
        "Over Horovod the gains on images are in the paper's range. ResNet-50 has 161 small tensors, so one "
        "millisecond each puts WFBP and TicTac, which do not fuse, further behind than in the paper: the assumed "
        "negotiation is too dear for them. On VGG-16 TicTac is as fast as PACE, whose cuts cost an overhead each that "
        "its planner takes to be nothing (docs/policies/pace.md). The translators send for several times as long as "
        "they compute, since no GPU is as busy with small products, one token after the other, as with VGG-16's "
        "convolutions: their real computing is longer, and there is more to hide behind it than here.",
    ),
    Study(
        "pace-fig9.yaml",
        "PACE, Fig. 9: gain in training speed with 12 workers, by bandwidth",
        "As Fig. 8.",
        FIG_9.columns("model, bandwidth"),
        FIG_9.rows,
        "As in the paper the gain over Horovod on ResNet-50 is largest near 6 Gbit/s and gone at 20; on VGG-16 it is "
        "small when slow, and at 20 Gbit/s larger than the paper's 13%. All are alike when slow, but for WFBP and "
        "TicTac on the models with many small tensors. The Transformer gains less at 14 Gbit/s than the paper's 27%, "
        "and more the faster the network, where the paper's gain falls: its computing is too short here, as under "
        "Fig. 8.",
    ),
    Study(
        "tictac.yaml",
        "TicTac: training with one server and 4 workers, 10 Gbit/s",
        "K80 computing times as published; the paper's machines are Azure's with and without GPUs, and its "
        "results by model "
        "are bars without numbers. `fifo` is arrival order; the paper's baseline is a random order in every "
        "worker and "
        "iteration, which is worse.",
        TICTAC.columns("model"),
        TICTAC.rows,
        "Where computing hides the transfers there is nothing to gain.",
    ),
    Study(
        "caramel-components.yaml",
        "Caramel, Fig. 11: utilisation of the processor, component by component",
        "Shuffle all-reduce at 10 Gbit/s, K80 computing times as published. 0.1 ms a message and 0.5 ms a "
        "transfer are "
        "assumptions: the paper's line (Fig. 4c) is drawn only. The paper, Inception-v3 on 8 workers: Horovod "
        "68%, depth "
        "+14, batching +4, boundaries 92%.",
        ("model, workers", "WFBP", "Horovod", "depth only", "and batching", "and boundaries (all)"),
        _caramel_rows,
        "The published times of these GPUs leave so much computing that 10 Gbit/s hide nearly all of it: the paper's "
        "68% for Horovod has costs in it that are neither in its text nor here. So this cell shows no gains to "
        "compare, "
        "only that batching is what mends many small transfers (ResNet-50).",
    ),
)

INTRODUCTION = """# The papers' tables, simulated

Made by `make papers` from configs/papers/ with Prophet's simulator, MLfabric's part with a cluster of its own
(docs/policies/mlfabric.md); nothing was fitted to a result that it is compared with. Simulated values are of *this*
project's queue and policies on an idealised cluster: what they can be held against is the order of the policies, the
sign and the size of gains, and where curves meet, rather than the last digit. What differs, and why, stands below
each table.
"""


def study_page(study: Study, cells: Cells, workers: Sequence[int]) -> str:
    """One study as a section of the page."""
    about = f"`configs/papers/{study.config}`. {study.assumed}"
    rows = table(study.columns, study.rows(cells, workers))
    return f"## {study.title}\n\n{about}\n\n{rows}\n{study.remarks}\n"


def main(arguments: list[str] | None = None) -> int:
    """Writes the page; exit status 2 with one line for an error of the user's."""
    parser = argparse.ArgumentParser(prog="python -m tools.papers", description=__doc__)
    parser.add_argument("--configs", type=Path, default=Path("configs/papers"))
    parser.add_argument("--page", type=Path, default=Path("docs/results/papers.md"))
    given = parser.parse_args(arguments)
    return exit_status(lambda: write_page(given.configs, given.page))


def write_page(configs: Path, page: Path) -> int:
    """Simulates all studies and writes the page. Raises UserError and OSError."""
    console = Console(stderr=True)
    sections = [INTRODUCTION]
    for study in STUDIES:
        experiment = load_experiment(configs / study.config)
        planned = prepare_experiment(experiment)
        with (
            tempfile.TemporaryDirectory() as folder,
            progress_bar(experiment, console, recordings=False) as listener,
        ):
            done = simulate_experiment(experiment, planned, Path(folder), listener)
        workers = [cell.cluster.workers for cell in experiment.cells]
        sections.append(study_page(study, summarize(experiment, done)["cells"], workers))
        if study.config == "tictac.yaml":
            sections.append(paper_orders.section())
    sections.append(mlfabric_page.section(page.parent))
    page.write_text("\n".join(sections), encoding="utf-8")
    print(f"written to {page}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
