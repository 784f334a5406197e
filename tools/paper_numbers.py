"""The papers' own numbers, and the rows of tables that have ours beside them.

Rule of this file: what the papers printed, by row and policy, as data; nothing that runs uses it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tools.kept import Point
from tools.markdown import shown
from tools.real_tables import rate
from tools.words import speedup


@dataclass(frozen=True)
class PublishedRates:
    """Samples a second of one worker: the paper's by row and policy, beside the simulated."""

    labels: tuple[str, ...]
    paper: Mapping[str, Sequence[float | None]] = field(default_factory=dict)

    def columns(self, first: str) -> tuple[str, ...]:
        return (first, *(f"{name}, {whose}" for name in self.paper for whose in ("paper", "simulated")))

    def rows(self, points: Sequence[Point]) -> list[Sequence[str]]:
        table: list[Sequence[str]] = []
        for place, (point, label) in enumerate(zip(points, self.labels, strict=True)):
            row = [label]
            for name, values in self.paper.items():
                value = values[place]
                row += [shown(value, "g"), rate(point.cell, point.workers, name)]
            table.append(row)
        return table


TABLE_2 = PublishedRates(
    ("1 Gbit/s", "2", "3", "4", "4.5", "6", "10 (not a comparison)"),
    {
        "prophet": (27.7, 47.9, 60, 67.06, 69.29, 69.5, 70.6),
        "bytescheduler": (25.9, 39.09, 44, 50.5, 54.14, 70, 71.1),
        "p3": (25.16, 37.69, 51.22, 64.34, 67.83, 68.93, 72.83),
        "stock": (None,) * 7,
    },
)
TABLE_3 = PublishedRates(
    ("ResNet-18 (16)", "ResNet-18 (64)", "ResNet-50 (16)", "ResNet-50 (32)", "ResNet-50 (64)"),
    {
        "prophet": (32.46, 153, 14.44, 34.8, 60),
        "bytescheduler": (29.06, 115, 14.22, 28.5, 44),
        "p3": (None, 137, None, None, 51.22),
        "stock": (None, 110, None, None, None),
    },
)
HETEROGENEOUS = PublishedRates(
    ("one worker at 500 Mbit/s",), {"prophet": (26.4,), "bytescheduler": (25.8,), "stock": (15.09,)}
)
FIG_12 = PublishedRates(("2 workers", "4", "6", "8"), {"prophet": (69.94, None, None, 68.83), "stock": (None,) * 4})


@dataclass(frozen=True)
class PublishedGains:
    """Gain of one policy over others, in percent of training speed; the paper's are ranges or words."""

    labels: tuple[str, ...]
    winner: str
    others: Mapping[str, str]

    def columns(self, first: str) -> tuple[str, ...]:
        return (first, *(f"over {name} (paper: {claim})" for name, claim in self.others.items()))

    def rows(self, points: Sequence[Point]) -> list[Sequence[str]]:
        def gain(point: Point, name: str) -> str:
            ratio = speedup(point.cell.rests_s, self.winner, name)
            return "failed" if ratio is None else f"{ratio - 1:+.0%}"

        return [
            (label, *(gain(point, name) for name in self.others))
            for label, point in zip(self.labels, points, strict=True)
        ]


FIG_8 = PublishedGains(
    tuple(f"{model}, {workers}" for model in ("ResNet-50", "VGG-16", "Transformer", "Seq2Seq") for workers in (8, 16)),
    "pace",
    {"wfbp": "20 to 36%", "horovod": "3 to 32%", "tictac": "13 to 21%"},
)
FIG_9 = PublishedGains(
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
TICTAC = PublishedGains(
    ("Inception-v3", "ResNet-50", "VGG-16", "AlexNet"),
    "tictac",
    {"fifo": "up to 20% in training, 82% in inference", "tictac-tio": "about 0"},
)
