"""Configs of the page of the paper's experiments on real engines, and the text on each.

Rule of this file: the paper's numbers beside ours, what was scaled, and remarks. A remark's numbers are computed from
the cells above it; single observations and counts by hand are in docs/results/notes/.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.kept import Point
from tools.paper_numbers import FIG_12, HETEROGENEOUS, TABLE_2, TABLE_3
from tools.real_tables import all_cells, beside_paper, by_profile, samples_per_s, worker_counts
from tools.words import ahead, gains, over_bound, span, standing, without_prophet

SCALED = "Bytes and rates are an eighth of the paper's, so times are the paper's."
TWO_WORKERS = f"{SCALED} Two workers, not seven."
IDLE_MOMENTS = (
    "These links catch up with moments that they were idle ([validation.md](validation.md)), so waiting for each "
    "acknowledgement costs `p3` little."
)


@dataclass(frozen=True)
class RealStudy:
    """One config and its text on the page. `figures` are files of its results that the page shows."""

    config: str
    title: str
    about: str
    tables: Callable[[Sequence[Point]], str]
    figures: Sequence[str] = ()
    simulated: bool = False
    """True if the same config is simulated too, for `tables` to show beside."""
    remarks: Callable[[Sequence[Point]], str] = lambda points: ""
    """Remarks on what the reader should see in the numbers."""

    @property
    def name(self) -> str:
        return Path(self.config).stem


def _standings(points: Sequence[Point]) -> str:
    """Return a sentence for each cell: prophet against everything that ran without Prophet."""
    return " ".join(standing(point.cell, "prophet", without_prophet(point.cell)) for point in points)


def _peers(points: Sequence[Point]) -> str:
    return (
        f"{_standings(points)} In digits one layer has nearly all bytes, so there is hardly an order to choose, and "
        "DDP has two advantages there: its all-reduce is over with the last byte, where a server's answer to the last "
        "partition comes after it, and it has no server to share the cores with. `p3` is Prophet's queue with one "
        f"partition in flight. {IDLE_MOMENTS} `bytescheduler` keeps 4 MB in flight, which is nearly all that digits "
        "has. In MXNet `stock` cannot overlap: its way of scaling gradients waits for the end of backward."
    )


def _trained(points: Sequence[Point]) -> str:
    return (
        f"{_standings(points)} Where the network is not short, the processors are: what sends with less processor time "
        "is ahead then."
    )


def _models(points: Sequence[Point]) -> str:
    others = [name for name in points[0].cell.policies if name != "prophet"]
    parts = [f"{span([1 + gain for gain in gains(points, 'prophet', other)], '{:.2f}'.format)} as {other}"
             for other in others]  # fmt: skip
    return (
        f"Prophet's iterations take {span(over_bound(points, 'prophet'))} longer than the bound, and it is ahead of "
        f"all others {ahead(points, 'prophet', others)}: {', '.join(parts)} (times as fast). BERT-base's embedding, a "
        "fifth of all bytes, is generated last and needed first, so that nothing hides its transfer."
    )


def _bandwidths(points: Sequence[Point]) -> str:
    return (
        "Prophet is at least as fast as both as they are configured in the paper "
        f"{ahead(points, 'prophet', ('p3-paper', 'bytescheduler-paper'))}. Against p3 with Prophet's partitions it is "
        f"{span(gains(points, 'prophet', 'p3'), '{:+.1%}'.format)} faster. {IDLE_MOMENTS}"
    )


def _batches(points: Sequence[Point]) -> str:
    return (
        "Prophet is at least as fast as all others as configured in the paper "
        f"{ahead(points, 'prophet', ('bytescheduler-paper', 'p3-paper', 'stock'))}, and "
        f"{span(gains(points, 'prophet', 'bytescheduler-paper'))} faster than ByteScheduler (paper: 1.5 to 36%)."
    )


def _slow_worker(points: Sequence[Point]) -> str:
    return (
        f"Prophet is {span(gains(points, 'prophet', 'bytescheduler'))} faster than ByteScheduler, where the paper has "
        f"2.3%. Its iterations take {span(over_bound(points, 'prophet'))} longer than the bound. All workers wait for "
        "the slow one's bytes, so "
        "what counts is that its link never idles and carries first what it is needed for."
    )


def _workers(points: Sequence[Point]) -> str:
    def lost(simulated: bool, name: str) -> str:
        cells = [(point.simulated if simulated else point.cell, point.workers) for point in points]
        rates = [samples_per_s(cell, workers, name) for cell, workers in cells if cell is not None]
        if not rates or rates[0] is None or rates[-1] is None:
            return "an unknown part"
        return f"{1 - rates[-1] / rates[0]:.1%}"

    return (
        f"From {points[0].workers} to {points[-1].workers} workers Prophet loses "
        f"{lost(False, 'prophet')} of a worker's samples a second (simulated: {lost(True, 'prophet')}), stock "
        f"{lost(False, 'stock')} (simulated: {lost(True, 'stock')})."
    )


TWO = {"prophet": "prophet", "bytescheduler": "bytescheduler", "stock": "stock"}
PAPERS = {"prophet": "prophet", "bytescheduler": "bytescheduler-paper", "p3": "p3-paper", "stock": "stock"}
_PLACES_2 = (0, 1, 2, 4, 6)


def _some(values: Mapping[str, Sequence[float | None]], places: Sequence[int]) -> dict[str, list[float | None]]:
    return {name: [numbers[place] for place in places] for name, numbers in values.items()}


STUDIES = (
    RealStudy(
        "peers.yaml",
        "Every scheduler that runs here",
        "Interleaved runs. `stock` is BytePS without Prophet; `p3` and `bytescheduler` are those policies "
        "on Prophet's queue and front end; the others are what their own projects ship, started as they document it.",
        all_cells,
        ("iteration-times.png", "gradients-0.png", "throughput-0.png"),
        remarks=_peers,
    ),
    RealStudy(
        "train-resnet.yaml",
        "ResNets trained for real",
        "Computing is real as well: the workers and the server share the machine's cores, and what an engine computes "
        "for itself is missing to the training.",
        all_cells,
        remarks=_trained,
    ),
    RealStudy(
        "replay-models.yaml",
        "Six models' patterns",
        "Every model with the same bytes and times, so that what differs is in which order which sizes appear.",
        by_profile,
        remarks=_models,
    ),
    RealStudy(
        "real/bandwidths.yaml",
        "Table 2: ResNet-50, batch size 64, by bandwidth",
        f"Samples a second of one worker. {TWO_WORKERS} The server's link is as wide for each worker as in the paper.",
        beside_paper(
            [TABLE_2.labels[place] for place in _PLACES_2],
            _some(TABLE_2.paper, _PLACES_2),
            PAPERS,
            ("p3", "bytescheduler"),
        ),
        remarks=_bandwidths,
    ),
    RealStudy(
        "real/batches.yaml",
        "Table 3: by model and batch size, 3 Gbit/s",
        f"Samples a second of one worker. {TWO_WORKERS}",
        beside_paper(TABLE_3.labels, TABLE_3.paper, PAPERS, ("bytescheduler",)),
        remarks=_batches,
    ),
    RealStudy(
        "real/slow-worker.yaml",
        "Section 5.3: one slow worker",
        f"Samples a second of one worker. {TWO_WORKERS} The second row is one worker with a fifth of the other's rate.",
        beside_paper(
            ("500 Mbit/s beside 10 Gbit/s", "a fifth"),
            {name: [*values, None] for name, values in HETEROGENEOUS.paper.items()},
            TWO,
        ),
        remarks=_slow_worker,
    ),
    RealStudy(
        "real/workers.yaml",
        "Fig. 12: by number of workers, 10 Gbit/s",
        f"Samples a second of one worker; the paper's are {FIG_12.paper['prophet'][0]} with 2 and "
        f"{FIG_12.paper['prophet'][-1]} with 8. {SCALED} The server has half of the paper's rate for half "
        "of its workers. `simulated` is the same config under `prophet simulate`.",
        worker_counts,
        simulated=True,
        remarks=_workers,
    ),
)
