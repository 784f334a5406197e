"""Configs that ship with Prophet, in the wheel or the checkout."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

_PACKAGE = Path(__file__).parents[1]
IN_WHEEL = _PACKAGE / "configs"
FOLDER = IN_WHEEL if IN_WHEEL.is_dir() else _PACKAGE.parents[1] / "configs"


def config_path(named: Path) -> Path:
    """Return the path of a config: an existing file, else the shipped config of that name, which may be written
    `quickstart`, `quickstart.yaml` or `configs/quickstart.yaml`. If neither exists, return `named` unchanged.
    """
    if named.exists() or named.is_absolute():
        return named
    inside = FOLDER / named.with_suffix(".yaml").as_posix().removeprefix("configs/")
    return inside if inside.is_file() else named


def shipped() -> Iterator[tuple[str, str]]:
    """Yield each shipped config's name and the first sentence of its comment."""
    for path in sorted(FOLDER.rglob("*.yaml")):
        lines = path.read_text(encoding="utf-8").splitlines()
        comment = itertools.takewhile(lambda line: line.startswith("#"), lines)
        words = " ".join(line.removeprefix("#").strip() for line in comment)
        yield path.relative_to(FOLDER).with_suffix("").as_posix(), words.partition(". ")[0].rstrip(".")
