"""Test that no two public classes have the same name."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDERS = ("prophet", "plugins", "tools")


def public_classes(folders: tuple[str, ...] = FOLDERS) -> dict[str, list[str]]:
    """Return, by name, the files whose top level has a class of that name."""
    found: dict[str, list[str]] = defaultdict(list)
    for file in sorted(file for folder in folders for file in (ROOT / folder).rglob("*.py")):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(str(file.relative_to(ROOT)))
    return found


def test_no_two_public_classes_have_one_name() -> None:
    classes = public_classes()
    assert {"Policy", "Contender", "EngineSpec", "Hook"} <= classes.keys()
    assert {name: files for name, files in classes.items() if len(files) > 1} == {}
