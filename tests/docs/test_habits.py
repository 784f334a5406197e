"""What a contributor's tools promise: the hooks before a commit look at what `make lint` looks at."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]


def words(command: str) -> list[str]:
    """A linter's command without what says which files it is for."""
    return re.sub(r" (\.|--force-exclude|\$\$\(.*\))(?= |$)", "", command).split()


def test_every_linter_of_make_lint_has_a_hook() -> None:
    target = re.search(r"^lint:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert target is not None
    linters = [words(line.strip().replace("$(BIN)", ".venv/bin")) for line in target.group(1).splitlines()]
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    hooks = [hook for repo in config["repos"] for hook in repo["hooks"]]
    assert sorted(words(hook["entry"]) for hook in hooks) == sorted(linters)
    assert {repo["repo"] for repo in config["repos"]} == {"local"}
    assert {hook["language"] for hook in hooks} == {"system"}
