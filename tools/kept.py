"""Data of the pages of results: data/NAME.json beside the pages, with its date, machine and commit, and dated notes.

Rule of this file: reading and writing kept data; no pages. Measuring tools keep their numbers here, so that `make
pages` needs no measurement; Provenance's line on a page says where they come from. `notes/NAME.md` is written by hand,
with the date of measurement: numbers whose data is gone, and single observations. A note whose numbers were measured
again is on no page, and a test asks for its removal.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import JsonValue, TypeAdapter, ValidationError
from pydantic_core import to_json, to_jsonable_python

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.files import write_whole
from prophet_scheduler.lab.config import Cell, Experiment, experiment_of
from prophet_scheduler.lab.records import CellResult, first_error, read

RESULTS = Path("docs/results")
"""Folder of the pages, with their sources in data/ and notes/."""
LARGE = {"log_tail"}
"""Fields of a policy that no page shows."""
T = TypeVar("T")


def page_parser(name: str, about: str | None) -> argparse.ArgumentParser:
    """Return the argument parser of `python -m tools.NAME`, which makes a page of results or its data."""
    parser = argparse.ArgumentParser(prog=f"python -m tools.{name}", description=about)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the pages and their data")
    return parser


@dataclass(frozen=True)
class Provenance:
    """Origin of data. `date` is ISO without time; `commit` is short, followed by `+` if tracked files had changes."""

    date: str
    commit: str
    processor: str
    cores: int

    @property
    def machine(self) -> str:
        """Description of the machine; results are comparable if it is the same."""
        return f"{self.processor}, {self.cores} core{'' if self.cores == 1 else 's'}"

    def line(self, done: str = "Measured") -> str:
        """Return the line for a page, beginning with `done`."""
        return f"{done} on {self.date} at commit {self.commit} on {self.machine}."


def here() -> Provenance:
    return Provenance(datetime.date.today().isoformat(), commit(), processor(), os.cpu_count() or 1)


def commit() -> str:
    """Return the commit of the checkout, or `unknown`. Files that measurements write do not count as changes."""
    command = ("git", "describe", "--always", "--exclude=*")
    here, written = Path(__file__).parent, (":/", ":!/docs/results")
    try:
        name = subprocess.run(command, cwd=here, check=True, capture_output=True, text=True).stdout.strip()
        return name + "+" * subprocess.run(("git", "diff", "--quiet", "HEAD", "--", *written), cwd=here).returncode
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def processor() -> str:
    """Return the processor's name as Linux reports it, or else the architecture."""
    name = re.search(r"^model name\s*: *(.*)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
    return name[1] if name else platform.machine()


@dataclass(frozen=True)
class KeptData(Generic[T]):
    """Kept data of a measurement, and when and where it was `measured`."""

    measured: Provenance
    data: T


@dataclass(frozen=True)
class Point:
    """One cell of a config, with its number of workers, and the same cell simulated, if it was."""

    cell: CellResult
    workers: int
    simulated: CellResult | None = None

    @property
    def real_and_simulated_s(self) -> dict[str, tuple[float, float]]:
        """Real and simulated time of an iteration at rest, for each policy that has both."""
        real_s, simulated_s = self.cell.rests_s, {} if self.simulated is None else self.simulated.rests_s
        return {name: (real_s[name], simulated_s[name]) for name in real_s if name in simulated_s}


@dataclass(frozen=True)
class Study:
    """A config that was run: its content, and its cells' results."""

    config: Mapping[str, JsonValue]
    points: Sequence[Point]

    @property
    def cells(self) -> list[CellResult]:
        """Results of the real runs."""
        return [point.cell for point in self.points]

    def configured(self) -> list[tuple[Cell, Point]]:
        """Return each point with its cell of the config. Raises UserError if their numbers differ."""
        cells = experiment_of(self.config, Path("kept.yaml")).cells
        if len(cells) != len(self.points):
            raise UserError(f"{len(self.points)} cells are kept of a config that has {len(cells)}; measure it again")
        return list(zip(cells, self.points, strict=True))


def study_of(experiment: Experiment, cells: Sequence[CellResult]) -> Study:
    """Return the part of an experiment's results to keep. Raises UserError if they are of another config."""
    if len(cells) != len(experiment.cells):
        raise UserError(f"{experiment.file}: its results are of another config; run it again")
    points = [Point(small(cell), of.cluster.workers) for cell, of in zip(cells, experiment.cells, strict=True)]
    return Study(to_jsonable_python(experiment.source), points)


def small(cell: CellResult) -> CellResult:
    """Return `cell` without large fields, which no page shows."""
    shown = {"policies": {"__all__": LARGE}}
    return CellResult.model_validate(cell.model_dump(exclude_unset=True, exclude=shown))


def keep(results: Path, name: str, kind: type[T], data: T, measured: Provenance | None = None) -> None:
    """Write data/`name`.json atomically. `measured` None is here and now."""
    content = TypeAdapter(KeptData[kind]).dump_python(  # type: ignore[valid-type]
        KeptData(measured or here(), data), mode="json", exclude_unset=True
    )
    path = data_file(results, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(_compact(json.dumps({"schema": 1, **content}, indent=1, allow_nan=False)) + "\n", path)


def kept(results: Path, name: str, kind: type[T]) -> KeptData[T] | None:
    """Return what `keep` wrote; None if nothing is kept under that name. Raises UserError."""
    path, adapter = data_file(results, name), TypeAdapter(KeptData[kind])  # type: ignore[valid-type]
    return read(path, adapter.validate_python, "kept results") if path.exists() else None


def data_file(results: Path, name: str) -> Path:
    return results / "data" / f"{name}.json"


def note(results: Path, name: str) -> str:
    """Return the dated note of that name, with links adjusted for a page; "" if there is none."""
    path = results / "notes" / f"{name}.md"
    return path.read_text(encoding="utf-8").replace("](../", "](") if path.exists() else ""


def read_pieces(path: Path, kind: type[T]) -> list[T]:
    """Return the pieces of a long measurement, one line of JSON each; none if there is no file. Raises UserError."""
    pieces = []
    for number, line in enumerate(path.read_bytes().splitlines() if path.exists() else (), 1):
        try:
            pieces.append(TypeAdapter(kind).validate_json(line))
        except ValidationError as error:
            raise UserError(f"{path}:{number}: cannot be read ({first_error(error)}); remove the line") from None
    return pieces


def resumed(
    path: Path, kind: type[T], keys: Iterable[Any], make: Callable[[int, Any], T], key_of: Callable[[T], Any]
) -> list[T]:
    """Return the pieces in `path`, after making and adding those missing for `keys`.

    `make` gets the index of a key and the key. Several pieces may have the same key. Raises UserError.
    """
    pieces = read_pieces(path, kind)
    there = [key_of(piece) for piece in pieces]
    for number, key in enumerate(keys):
        if key in there:
            there.remove(key)
            continue
        pieces.append(make(number, key))
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as lines:
            lines.write(to_json(pieces[-1]) + b"\n")
        print(f"{path.name}: {pieces[-1]}", flush=True)
    return pieces


_NUMBERS = re.compile(r"\[[\d\s,.eE+-]*\]")


def _compact(text: str) -> str:
    """Return JSON with each list of numbers on one line."""
    return _NUMBERS.sub(lambda match: " ".join(match.group().split()).replace("[ ", "[").replace(" ]", "]"), text)
