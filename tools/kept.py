"""What pages of results are made from: data/NAME.json beside the pages, and dated notes.

Rule of this file: reading and writing what is kept, and no words of a page. A tool that measures keeps its numbers
here and makes its page from them, so that a page can be made again without measuring. `notes/NAME.md` is written by
hand and says when it was measured: numbers whose data is gone, and what was seen once. A note that has a section's name
stands in for it until the section is measured anew.
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
"""The pages, with what they are made from in data/ and notes/."""
VALIDATION = "validation"
"""What `make validate` keeps, of which two pages are made."""
LARGE = {"over_time", "wait_by_gradient_s", "log_tail", "tuning"}
"""What no page shows of a policy."""
T = TypeVar("T")


@dataclass(frozen=True)
class Point:
    """One cell of a config, with its number of workers, and the same cell simulated where it was."""

    cell: CellResult
    workers: int
    simulated: CellResult | None = None

    @property
    def real_and_simulated_s(self) -> dict[str, tuple[float, float]]:
        """What an iteration takes at rest, both ways, under each policy that has both."""
        real_s, simulated_s = self.cell.rests_s, {} if self.simulated is None else self.simulated.rests_s
        return {name: (real_s[name], simulated_s[name]) for name in real_s if name in simulated_s}


@dataclass(frozen=True)
class Study:
    """A config that was run: its content, and its cells."""

    config: Mapping[str, JsonValue]
    points: Sequence[Point]


def basis(results: Path, names: Iterable[str], *, at_rest: bool = False) -> str:
    """What the times of a page are that is made of these studies, in a sentence; empty where none is kept."""
    stored = [kept(results, name, Study) for name in names]
    cells = [point.cell for each in stored if each is not None for point in each[1].points]
    return said_of(cells, at_rest=at_rest) if cells else ""


def said_of(cells: Iterable[CellResult], *, at_rest: bool = False) -> str:
    """The same of these cells."""
    several = [policy.iteration_s for cell in cells for policy in cell.policies.values() if policy.iteration_s]
    return iterations.basis(several, at_rest)


def study_of(experiment: Experiment, results: Results, simulated: Results | None = None) -> Study:
    """What is kept of an experiment's results. Raises UserError where they are of another config."""
    others = [None] * len(results.cells) if simulated is None else [small(cell) for cell in simulated.cells]
    if not len(others) == len(results.cells) == len(experiment.cells):
        raise UserError(f"{experiment.file}: its results are of another config; run it again")
    points = [
        Point(small(cell), place.cluster.workers, other)
        for cell, place, other in zip(results.cells, experiment.cells, others, strict=True)
    ]
    return Study(results.config, points)


def still_simulated(study: Study, former: Study) -> Study:
    """`study`, with what was simulated of the cells that are measured as they were in the `former` one."""

    def simulated(point: Point) -> CellResult | None:
        alike = (other for other in former.points if _measured_alike(point.cell, other.cell))
        return next((other.simulated for other in alike), point.simulated)

    return replace(study, points=[replace(point, simulated=simulated(point)) for point in study.points])


def _measured_alike(cell: CellResult, other: CellResult) -> bool:
    return dict(cell.setting) == dict(other.setting) and cell.times_s == other.times_s


def small(cell: CellResult) -> CellResult:
    """`cell` without what is large and on no page."""
    policies = {
        name: PolicyResult.model_validate(policy.model_dump(exclude_unset=True, exclude=LARGE))
        for name, policy in cell.policies.items()
    }
    return cell.model_copy(update={"policies": policies})


def keep(
    results: Path, name: str, kind: type[T], data: T, measured: Provenance, *, replaces: Sequence[str] = ()
) -> None:
    """Writes data/`name`.json, whole or not at all, and removes the notes that it takes the place of.

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
    """Keeps what was measured here and now, and makes its page anew."""
    keep(results, name, kind, data, here(), replaces=replaces)
    write_page(results, file, page)


def write_page(results: Path, file: str, page: Callable[[Path], str]) -> None:
    """Makes a page from what is kept, and says where it is."""
    (results / file).write_text(page(results), encoding="utf-8")
    print(f"the page is {results / file}")


def kept(results: Path, name: str, kind: type[T]) -> tuple[Provenance, T] | None:
    """What `keep` wrote, None where nothing is kept under that name. Raises UserError."""
    path = data_file(results, name)
    if not path.exists():
        return None

    def check(raw: Any) -> tuple[Provenance, T]:
        whole = TypeAdapter(dict[str, Any]).validate_python(raw)
        measured = TypeAdapter(Provenance).validate_python(whole.get("measured"))
        return measured, TypeAdapter(kind).validate_python(whole.get("data"))

    return read(path, check, "kept results")


def data_file(results: Path, name: str) -> Path:
    """Where the data of `name` is."""
    return results / "data" / f"{name}.json"


def note(results: Path, name: str) -> str:
    """The dated note of that name, with its links as they are on a page; empty where there is none."""
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
    """A page's `text` of what is kept under `name`, or what stands there instead (`otherwise`). Raises UserError.

    `stand_in` is the note that may do so, where it has another name.
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
    """A page of one study, with what its times are, and the note of what was seen. `at_rest`: it shows nothing else."""
    said = basis(results, [name], at_rest=at_rest)
    return joined(introduction, said, section(results, name, Study, command, text), note(results, f"{name}-seen"))


def otherwise(results: Path, name: str, command: str) -> str:
    """What stands on a page where no data is kept: the dated note, or how to measure."""
    return note(results, name) or f"{not_measured(command)}\n"


def not_measured(command: str) -> str:
    """The sentence that stands for what was never measured."""
    return f"Not measured yet: `{command}`."


def joined(*parts: str) -> str:
    """A page from its parts: an empty line between them, and none that is empty."""
    return "\n\n".join(part.strip("\n") for part in parts if part.strip("\n")) + "\n"


_NUMBERS = re.compile(r"\[[\d\s,.eE+-]*\]")


def _compact(text: str) -> str:
    """JSON with each list of numbers on one line."""
    return _NUMBERS.sub(lambda match: " ".join(match.group().split()).replace("[ ", "[").replace(" ]", "]"), text)
