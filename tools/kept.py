"""Data of the pages of results: data/NAME.json beside the pages, and dated notes.

Rule of this file: reading and writing what is kept, and no text of a page. A tool that measures keeps its numbers here
and makes its page from them, so that a page can be made again without measuring. `notes/NAME.md` is written by hand and
says when it was measured: numbers whose data is gone, and single observations. A note with a section's name stands in
for it until the section is measured anew.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from pydantic import JsonValue, TypeAdapter

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.files import write_whole
from prophet_scheduler.lab import iterations
from prophet_scheduler.lab.config import Experiment
from prophet_scheduler.lab.records import CellResult, PolicyResult, Results, read
from tools.provenance import Provenance, here

RESULTS = Path("docs/results")
"""Folder of the pages, with their sources in data/ and notes/."""
VALIDATION = "validation"
"""Name of what `make validate` keeps, of which two pages are made."""
LARGE = {"over_time", "wait_by_gradient_s", "log_tail", "tuning"}
"""Fields of a policy that no page shows."""
T = TypeVar("T")


@dataclass(frozen=True)
class Point:
    """One cell of a config, with its number of workers, and the same cell simulated if it was."""

    cell: CellResult
    workers: int
    simulated: CellResult | None = None

    @property
    def real_and_simulated_s(self) -> dict[str, tuple[float, float]]:
        """Return the time of an iteration at rest, both ways, under each policy that has both."""
        real_s, simulated_s = self.cell.rests_s, {} if self.simulated is None else self.simulated.rests_s
        return {name: (real_s[name], simulated_s[name]) for name in real_s if name in simulated_s}


@dataclass(frozen=True)
class Study:
    """A config that was run: its content, and its cells."""

    config: Mapping[str, JsonValue]
    points: Sequence[Point]


def basis(results: Path, names: Iterable[str], *, at_rest: bool = False) -> str:
    """Return a sentence on the times of a page made of these studies; "" if none is kept."""
    stored = [kept(results, name, Study) for name in names]
    cells = [point.cell for each in stored if each is not None for point in each[1].points]
    return said_of(cells, at_rest=at_rest) if cells else ""


def said_of(cells: Iterable[CellResult], *, at_rest: bool = False) -> str:
    """Return the same for these cells."""
    several = [policy.iteration_s for cell in cells for policy in cell.policies.values() if policy.iteration_s]
    return iterations.basis(several, at_rest)


def study_of(experiment: Experiment, results: Results, simulated: Results | None = None) -> Study:
    """Return what is kept of an experiment's results. Raises UserError if they are of another config."""
    others = [None] * len(results.cells) if simulated is None else [small(cell) for cell in simulated.cells]
    if not len(others) == len(results.cells) == len(experiment.cells):
        raise UserError(f"{experiment.file}: its results are of another config; run it again")
    points = [
        Point(small(cell), place.cluster.workers, other)
        for cell, place, other in zip(results.cells, experiment.cells, others, strict=True)
    ]
    return Study(results.config, points)


def still_simulated(study: Study, former: Study) -> Study:
    """Return `study`, with the simulated results of cells whose measurements are those of the `former` one."""

    def simulated(point: Point) -> CellResult | None:
        alike = (other for other in former.points if _measured_alike(point.cell, other.cell))
        return next((other.simulated for other in alike), point.simulated)

    return replace(study, points=[replace(point, simulated=simulated(point)) for point in study.points])


def _measured_alike(cell: CellResult, other: CellResult) -> bool:
    return dict(cell.setting) == dict(other.setting) and cell.times_s == other.times_s


def small(cell: CellResult) -> CellResult:
    """Return `cell` without large fields that no page shows."""
    policies = {
        name: PolicyResult.model_validate(policy.model_dump(exclude_unset=True, exclude=LARGE))
        for name, policy in cell.policies.items()
    }
    return cell.model_copy(update={"policies": policies})


def keep(
    results: Path, name: str, kind: type[T], data: T, measured: Provenance, *, replaces: Sequence[str] = ()
) -> None:
    """Write data/`name`.json, whole or not at all, and remove the notes that it replaces.

    They are that of the same name, and those that `replaces` names.
    """
    content = {
        "schema": 1,
        "measured": TypeAdapter(Provenance).dump_python(measured),
        "data": TypeAdapter(kind).dump_python(data, mode="json", exclude_unset=True),
    }
    path = data_file(results, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(_compact(json.dumps(content, indent=1, allow_nan=False)) + "\n", path)
    for gone in (name, *replaces):
        (results / "notes" / f"{gone}.md").unlink(missing_ok=True)


def publish(
    results: Path,
    name: str,
    kind: type[T],
    data: T,
    file: str,
    page: Callable[[Path], str],
    *,
    replaces: Sequence[str] = (),
) -> None:
    """Keep what was measured here and now, and make its page anew."""
    keep(results, name, kind, data, here(), replaces=replaces)
    write_page(results, file, page)


def write_page(results: Path, file: str, page: Callable[[Path], str]) -> None:
    """Make a page from what is kept, and print where it is."""
    (results / file).write_text(page(results), encoding="utf-8")
    print(f"the page is {results / file}")


def kept(results: Path, name: str, kind: type[T]) -> tuple[Provenance, T] | None:
    """Return what `keep` wrote, None if nothing is kept under that name. Raises UserError."""
    path = data_file(results, name)
    if not path.exists():
        return None

    def check(raw: Any) -> tuple[Provenance, T]:
        whole = TypeAdapter(dict[str, Any]).validate_python(raw)
        measured = TypeAdapter(Provenance).validate_python(whole.get("measured"))
        return measured, TypeAdapter(kind).validate_python(whole.get("data"))

    return read(path, check, "kept results")


def data_file(results: Path, name: str) -> Path:
    """Return the file with the data of `name`."""
    return results / "data" / f"{name}.json"


def note(results: Path, name: str) -> str:
    """Return the dated note of that name, with its links as they are on a page; "" if there is none."""
    path = results / "notes" / f"{name}.md"
    return path.read_text(encoding="utf-8").replace("](../", "](") if path.exists() else ""


def section(
    results: Path,
    name: str,
    kind: type[T],
    command: str,
    text: Callable[[T, Provenance], str],
    *,
    stand_in: str | None = None,
) -> str:
    """Return a page's `text` of what is kept under `name`, or its stand-in (`otherwise`). Raises UserError.

    `stand_in` is the note that stands in, if its name differs.
    """
    stored = kept(results, name, kind)
    if stored is None:
        return otherwise(results, stand_in or name, command)
    measured, data = stored
    return text(data, measured)


def study_page(
    results: Path,
    introduction: str,
    name: str,
    command: str,
    text: Callable[[Study, Provenance], str],
    *,
    at_rest: bool = False,
) -> str:
    """Return a page of one study, with the kind of its times, and its note. `at_rest`: it shows only times at rest."""
    said = basis(results, [name], at_rest=at_rest)
    return joined(introduction, said, section(results, name, Study, command, text), note(results, f"{name}-seen"))


def otherwise(results: Path, name: str, command: str) -> str:
    """Return the stand-in where no data is kept: the dated note, or how to measure."""
    return note(results, name) or f"{not_measured(command)}\n"


def not_measured(command: str) -> str:
    """Return the sentence for something never measured."""
    return f"Not measured yet: `{command}`."


def joined(*parts: str) -> str:
    """Join a page's parts with an empty line between them; leave out empty ones."""
    return "\n\n".join(part.strip("\n") for part in parts if part.strip("\n")) + "\n"


_NUMBERS = re.compile(r"\[[\d\s,.eE+-]*\]")


def _compact(text: str) -> str:
    """Return JSON with each list of numbers on one line."""
    return _NUMBERS.sub(lambda match: " ".join(match.group().split()).replace("[ ", "[").replace(" ]", "]"), text)
