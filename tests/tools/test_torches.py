"""Scripts that are run on several releases of torch."""

from __future__ import annotations

from tools.release import ROOT
from tools.torches import SCRIPTS


def test_every_script_is_there() -> None:
    folder = ROOT / "tests" / "scripts"
    assert all((folder / f"ddp_{name}.py").exists() for name in SCRIPTS)
