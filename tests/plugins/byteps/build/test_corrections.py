"""BytePS's corrections: each leaves its mark, and has a section in the page for BytePS's maintainers."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from prophet_byteps.build.recipe import RULES
from prophet_byteps.build.rules import CORRECTIONS, Correction, Rule

PAGE = Path(__file__).parents[4] / "docs" / "corrections.md"
LINKER_SCRIPT = "{ global: *byteps*; local: *; };\n"
"""The effect of BytePS's own."""


def sections() -> dict[str, str]:
    """The page's sections by heading, in lower case."""
    parts = re.split(r"^## (.*)$", PAGE.read_text("utf-8"), flags=re.MULTILINE)
    return dict(zip((heading.lower() for heading in parts[1::2]), parts[2::2], strict=True))


@pytest.mark.parametrize("correction", CORRECTIONS, ids=lambda correction: str(correction.name))
def test_each_has_a_section_that_tells_its_story(correction: Correction) -> None:
    section = sections().get(correction.name)
    assert section is not None, f"docs/corrections.md has no section on {correction.name}"
    for word in ("Fault", "Cause", "Fix", "Tested"):
        assert f"**{word}.**" in section, f"{correction.name}: no {word}"
    for rule in correction.rules:
        assert rule.file in section, f"{correction.name}: {rule.file} is not named"


def test_the_page_has_no_section_on_what_is_gone() -> None:
    assert set(sections()) == {*(correction.name for correction in CORRECTIONS), "beside these"}


def test_each_leaves_one_mark_of_its_own() -> None:
    marks = [correction.mark for correction in CORRECTIONS if correction.marked_after]
    assert len(set(marks)) == len(marks) == len(CORRECTIONS) - 1, "the launcher is a script, and needs none"
    for mark in marks:
        assert "byteps" in mark, "or BytePS's linker script would hide it"
        assert sum(f" {mark}()" in rule.new for rule in RULES) == 1


def test_a_mark_is_exported_by_what_it_is_compiled_into(tmp_path: Path) -> None:
    """Twice included, and with nobody who calls it."""
    mended = Rule("van.h", "int linger = 0;", "int linger = 5000;")
    correction = Correction("testing", "nothing", ("server",), (mended,), b"", "van.h", "#include <string>\n")
    header = tmp_path / "van.h"
    header.write_text("#include <string>\nint linger = 0;\n".replace("int", "static int"))
    for rule in correction.all_rules:
        header.write_text(rule.apply(header.read_text()))
    for name in ("one.cc", "two.cc"):
        (tmp_path / name).write_text(f'#include "van.h"\nint of_{name[:3]}() {{ return linger; }}\n')
    (tmp_path / "byteps.lds").write_text(LINKER_SCRIPT)
    compiler = shutil.which("g++")
    assert compiler is not None
    command = [compiler, "-O2", "-fPIC", "-shared", "-Wl,--gc-sections", "-Wl,--version-script=byteps.lds"]
    subprocess.run([*command, "one.cc", "two.cc", "-o", "c_lib.so"], cwd=tmp_path, check=True)
    names = subprocess.run(["nm", "-D", "c_lib.so"], cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    assert "prophet_byteps_corrected_testing" in names
    assert "of_one" not in names
