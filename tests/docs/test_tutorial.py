"""The tutorial as a reader follows it: its script, with fewer iterations, and each of its commands as it stands."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("plotly")

from support.pages import ROOT, blocks
from support.privileges import skip_without_namespaces
from support.programs import clean_environ

PAGE = ROOT / "docs" / "tutorial.md"
LONG, SHORT = "ITERATIONS = 100", "ITERATIONS = 30"
LIMIT_S = 240
WEIGHTS = re.compile(r"^weights ([0-9a-f]{16})$", re.MULTILINE)
TIME = re.compile(r"^iteration \d+: (\d\.\d{3}) s$", re.MULTILINE)


def commands() -> list[str]:
    return [line for text in blocks(PAGE, "") for line in text.splitlines()]


class Reader:
    """Someone with a folder, a terminal, and `python` and `prophet` of this environment."""

    def __init__(self, folder: Path, runtime: Path) -> None:
        self.folder = folder
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        self._environ = clean_environ() | {"PATH": path, "XDG_RUNTIME_DIR": str(runtime)}

    def start(self, line: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["sh", "-c", line],
            cwd=self.folder,
            env=self._environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def ended(self, line: str) -> tuple[int, str]:
        """Return its exit status and its output."""
        process = self.start(line)
        try:
            said, _ = process.communicate(timeout=LIMIT_S)
        finally:
            process.kill()
        return process.returncode, said

    def type(self, line: str) -> str:
        """Return its output; it must end well."""
        status, said = self.ended(line)
        assert status == 0, f"{line}:\n{said}"
        return said

    def look(self, line: str) -> str:
        """Return its output if it ends well."""
        status, said = self.ended(line)
        return said if status == 0 else ""


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    skip_without_namespaces()
    (script,) = blocks(PAGE, "python")
    assert script.count(LONG) == 1
    (tmp_path / "train.py").write_text(script.replace(LONG, SHORT), encoding="utf-8")
    with tempfile.TemporaryDirectory(prefix="prophet-") as runtime:  # names of sockets are short
        yield Reader(tmp_path, Path(runtime))


@pytest.mark.netns
def test_it_can_be_followed(reader: Reader) -> None:
    install, slow, fast, recorded, top, report, advise, own = commands()
    assert install.startswith("pip install ") and own.startswith(fast.partition(" --")[0])

    plain = reader.type(slow)
    ahead = reader.type(fast)
    job = reader.start(recorded)
    assert job.stdout is not None
    begun = next(line for line in job.stdout if TIME.match(line))
    seen = ""
    while not seen and job.poll() is None:  # on a busy machine nobody may answer in time
        seen = reader.look(top)
    watched = begun + job.stdout.read()
    assert job.wait(LIMIT_S) == 0, watched

    assert all(TIME.findall(said) for said in (plain, ahead, watched))
    (weights,) = WEIGHTS.findall(plain)
    assert WEIGHTS.findall(ahead) == WEIGHTS.findall(watched) == [weights]
    assert "train" in seen and "policy prophet" in seen
    status = json.loads((reader.folder / "status.json").read_text(encoding="utf-8"))
    assert (status["policy"], status["stepped_aside"]) == ("prophet", "")

    reader.type(report)
    assert (reader.folder / "record" / "report.html").is_file()
    assert "an iteration would take" in reader.type(advise)


def test_what_it_shows_is_what_the_script_says() -> None:
    slow, fast, _ = blocks(PAGE, "text")
    for said in (slow, fast):
        assert not WEIGHTS.sub("", TIME.sub("", said)).strip()
    assert WEIGHTS.findall(slow) == WEIGHTS.findall(fast)
    assert float(TIME.findall(fast)[-1]) < float(TIME.findall(slow)[-1])
