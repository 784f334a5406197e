"""The pages of this project that say what to type, and what they say.

Rule of this file: which pages, and their blocks; what must hold of them is their tests'.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]

BLOCK = re.compile(r"^```([^\n]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(page: Path, language: str) -> list[str]:
    """The text of each block in that language; those without one are commands to be typed."""
    return [text for label, text in BLOCK.findall(page.read_text(encoding="utf-8")) if label == language]
