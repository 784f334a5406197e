"""The pages of this project that contain commands, and the commands.

Rule of this file: it finds the pages and their blocks; tests check them.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]

BLOCK = re.compile(r"^```([^\n]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(page: Path, language: str) -> list[str]:
    """Return the text of each block in that language; blocks without one are commands to type."""
    return [text for label, text in BLOCK.findall(page.read_text(encoding="utf-8")) if label == language]
