"""Configs that come with Prophet: those of the wheel, or of the checkout."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

_PACKAGE = Path(__file__).parents[1]
IN_WHEEL = _PACKAGE / "configs"
FOLDER = IN_WHEEL if IN_WHEEL.is_dir() else _PACKAGE.parents[1] / "configs"


def config_path(named: Path) -> Path:
    """Return the path of a config: a file, or else the one that comes with Prophet under this name, which may be
    `quickstart`, `quickstart.yaml` or `configs/quickstart.yaml`. What is neither is returned as it is.
    """
    if named.exists() or named.is_absolute():
        return named
    inside = FOLDER / named.with_suffix(".yaml").as_posix().removeprefix("configs/")
    return inside if inside.is_file() else named


def shipped() -> Iterator[tuple[str, str]]:
    """Yield the name of each config and the sentence that it begins with."""
    for path in sorted(FOLDER.rglob("*.yaml")):
        lines = path.read_text(encoding="utf-8").splitlines()
        comment = itertools.takewhile(lambda line: line.startswith("#"), lines)
        words = " ".join(line.removeprefix("#").strip() for line in comment)
        yield path.relative_to(FOLDER).with_suffix("").as_posix(), words.partition(". ")[0].rstrip(".")
