"""Every command in README.md and docs/ can be typed as it stands, after no more than the page says was installed.

Quick commands are run, with nothing but the base's packages in sight (base_install.py). For the rest, subcommands,
options, files, targets, extras and variables are looked up.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.metadata
import importlib.util
import itertools
import json
import re
import shlex
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
import yaml

from prophet_scheduler.cli import main as cli
from prophet_scheduler.core import settings
from prophet_scheduler.core.event_record import EventRecord, save_record
from prophet_scheduler.core.events import EVENT_DTYPE, EventKind
from prophet_scheduler.core.network import Network
from prophet_scheduler.core.status import AgentStatus
from prophet_scheduler.engines.registry import engines
from prophet_scheduler.lab.config import load_experiment
from prophet_scheduler.models.profiles import save_profile
from prophet_scheduler.policies import all_definitions
from support.job_records import write_job_record
from support.pages import BLOCK, PAGES, ROOT, blocks
from support.profiles import resnet50
from support.programs import without_switches
from tools import measure

BASE = Path(__file__).with_name("base_install.py")
EXTRA = "comes with the extra {0}: `pip install ./plugins/{0}` in Prophet's checkout"

INLINE = re.compile(r"`((?:prophet|make|python3?|pip|bpslaunch|torchrun) [^`\n]+)`")
SUBSTITUTION = re.compile(r"\$\(([^)]*)\)")
ASSIGNMENT = re.compile(r"[A-Z_]+=\S+")
NO_DIGITS = "job.kind: digits: sklearn is not installed; workers: torch is not installed"
RUN = ("simulate", "plan", "advise", "profile", "replay", "doctor")
"""Subcommands that are quick, and are run as the pages have them."""


@dataclass(frozen=True)
class Command:
    """One command of a page: its variables and its words, and whether a person is to type it as it stands."""

    page: str
    variables: tuple[str, ...]
    words: tuple[str, ...]
    whole: bool

    def __str__(self) -> str:
        return f"{self.page}: {shlex.join([*self.variables, *self.words])}"


def parsed(page: Path, line: str, whole: bool) -> Command:
    # [--option VALUE] may be left out, and ... repeats: a person may also type it.
    words = shlex.split(re.sub(r"[\[\]](?=-|\s|$|\.\.\.)|\.\.\.", " ", line), comments=True)
    variables = list(itertools.takewhile(ASSIGNMENT.fullmatch, words))
    return Command(str(page.relative_to(ROOT)), tuple(variables), tuple(words[len(variables) :]), whole)


def commands() -> list[Command]:
    """Return every line of an unlabelled block, and everything between backticks in the running text."""
    typed = []
    for page in PAGES:
        lines = [line for text in blocks(page, "") for line in text.splitlines() if line.strip()]
        lines += [inner for line in lines for inner in SUBSTITUTION.findall(line)]
        prose = BLOCK.sub("", page.read_text(encoding="utf-8"))
        typed += [parsed(page, line, True) for line in lines]
        typed += [parsed(page, line, False) for line in INLINE.findall(prose)]
    return sorted(set(typed), key=str)


def run_once() -> list[Command]:
    """Return the first of each command that is to be run."""
    quick = [c for c in commands() if c.whole and c.words[:1] == ("prophet",) and c.words[1] in RUN]
    return list({command.words: command for command in quick}.values())


def trace() -> dict[str, Any]:
    """Return a trace of one backward pass with one gradient of 4 MB."""
    backward = {"name": "autograd::engine::evaluate_function: AddmmBackward0", "args": {"Sequence number": 1}}
    gradient = {
        "name": "torch::autograd::AccumulateGrad",
        "args": {"Input Dims": [[1000, 1000]], "Input type": ["float"]},
    }
    events = [{"ph": "X", "cat": "cpu_op", "ts": at, "dur": 50.0} for at in (1e5, 3e5)]
    return {"traceEvents": [events[0] | backward, events[1] | gradient]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkout as far as the pages' commands look at it, with what a job has left: profile, status, events."""
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    save_profile(resnet50(5_000_000), tmp_path / "job.json", source="a test")
    (tmp_path / "job.pt.trace.json").write_text(json.dumps(trace()))
    write_job_record(tmp_path / "record")
    status = AgentStatus("prophet", "", 4, 0.1, 1 << 20, None, network=Network(31.25e6, 0.0003))
    (tmp_path / "status.json").write_text(json.dumps(asdict(status)))
    add, start = (2.0, 5, 8, 0, 0, EventKind.ADD, 0), (2.0, 5, 8, 0, 0, EventKind.START, 0)
    save_record(EventRecord(np.array([add, start], EVENT_DTYPE)), tmp_path / "job-events.npz")
    return tmp_path


def base(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", str(BASE), *arguments]
    return subprocess.run(command, cwd=folder, env=without_switches(), capture_output=True, text=True, timeout=400)


def test_the_pages_have_commands() -> None:
    assert len(run_once()) >= 5
    assert {command.words[0] for command in commands()} == {"prophet", "make", "pip", "python", "bpslaunch", "torchrun"}
    assert {Path(command.page).name for command in run_once()} >= {"README.md", "simulator.md", "profiles.md"}


def test_nothing_of_the_extras_is_in_sight_of_the_base() -> None:
    extras = ["matplotlib", "plotly", "sklearn", "torch", "mxnet", "pytest"]
    needed = ["numpy", "pydantic", "yaml", "rich", "typer", "psutil", "prophet_scheduler.core._native"]
    done = base(Path(), "--in-sight", *extras, *needed)
    assert (done.returncode, done.stdout) == (0, f"{needed}\n"), done.stderr


@pytest.mark.parametrize("command", run_once(), ids=str)
def test_after_pip_install_it_works(command: Command, folder: Path) -> None:
    done = base(folder, *command.words[1:])
    lines = done.stderr.splitlines()
    if command.words[1] == "doctor":
        assert done.returncode == 2 and "pip install torch" in done.stdout, done.stderr
    else:
        assert (done.returncode, lines) == (0, [])


def test_a_report_without_plotly_is_one_line(folder: Path) -> None:
    write_job_record(folder / "record", iterations=1)
    done = base(folder, "report", "record")
    line = "prophet: prophet report: plotly and jinja2 are not installed; `pip install plotly jinja2`\n"
    assert (done.returncode, done.stderr) == (2, line)
    assert not (folder / "record" / "report.html").exists()


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["run", "configs/quickstart.yaml"], f"{NO_DIGITS}; `pip install scikit-learn torch`"),
        (
            ["run", "configs/mlfabric/c1-n1.yaml"],
            f"configs/mlfabric/c1-n1.yaml: engine: byteps_async {EXTRA.format('mlfabric')}",
        ),
        (
            ["simulate", "configs/replay-resnet50.yaml", "--policy", "tictac"],
            f"--policy: tictac {EXTRA.format('papers')}",
        ),
        (
            ["simulate", "configs/papers/tictac.yaml"],
            f"configs/papers/tictac.yaml: sweep[0].policies[1]: tictac-tio {EXTRA.format('papers')}",
        ),
        (
            ["run", "configs/bert-large-64.yaml"],
            "engine: bert-large-64 is for the simulator; run it with: prophet simulate configs/bert-large-64.yaml",
        ),
    ],
)
def test_what_lacks_is_one_line_and_nothing_is_written(folder: Path, arguments: list[str], line: str) -> None:
    done = base(folder, *arguments, "--out", "out")
    assert (done.returncode, done.stderr) == (2, f"prophet: {line}\n")
    assert not (folder / "out").exists()


@pytest.mark.parametrize("command", commands(), ids=str)
def test_it_can_be_typed(command: Command) -> None:
    check_variables(command)
    program, *arguments = command.words
    checks = {"prophet": check_prophet, "make": check_make, "pip": check_pip, "python": check_python}
    {**checks, "bpslaunch": check_launch, "torchrun": check_torchrun}[program](arguments, command.whole)


def check_variables(command: Command) -> None:
    known = {value for name, value in vars(settings).items() if name.isupper() and isinstance(value, str)}
    known |= {option.variable for entry in all_definitions().values() for option in entry.all_options}
    known.add("PYTHONPATH")
    for variable in command.variables:
        name, _, value = variable.partition("=")
        assert name in known
        if name == settings.SCHEDULER:
            assert value in {*all_definitions(), settings.MLFABRIC}
        if name == settings.DDP_SCHEDULER:
            assert value in {settings.OBSERVE, *(variant.policy for variant in engines()["ddp"].variants)}


def check_prophet(arguments: list[str], whole: bool) -> None:
    name, *rest = arguments
    group: Any = typer.main.get_command(cli.app)
    if name.startswith("-"):
        assert name in {word for param in group.params for word in param.opts}
        return
    subcommand = group.commands[name]
    if whole or rest:
        typed = ["3" if word == "N" else word for word in rest]
        with contextlib.suppress(typer.Exit):  # an option that is all the command does, such as --list
            subcommand.make_context(name, typed)  # raises where an option is unknown
    for word in rest:
        if word.startswith("configs/"):
            assert (ROOT / word).is_file()


def make_variable(name: str) -> set[str]:
    found = re.search(
        rf"^{name} := (.*?)\n\n", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    assert found is not None
    return set(found.group(1).replace("\\", "").split())


def check_make(arguments: list[str], whole: bool) -> None:
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert phony is not None
    targets = {*phony.group(1).split(), *make_variable("MEASUREMENTS"), "..."}
    assert {word for word in arguments if "=" not in word} <= targets


def test_each_measurement_is_a_target_of_make() -> None:
    assert make_variable("MEASUREMENTS") == set(measure.NAMES)


def check_pip(arguments: list[str], whole: bool) -> None:
    assert arguments[0] in ("install", "uninstall")
    for word in arguments[1:]:
        local = re.fullmatch(r"\.(?:\[([\w,]+)\])?", word)
        assert not word.startswith("prophet-"), "no index has it"
        assert not word.startswith("./") or (ROOT / word / "pyproject.toml").is_file()
        if local and local.group(1):
            extras = importlib.metadata.metadata("prophet-scheduler").get_all("Provides-Extra") or []
            assert set(local.group(1).split(",")) <= set(extras)


def check_python(arguments: list[str], whole: bool) -> None:
    if arguments[0] != "-m":
        assert arguments == ["train.py"]  # the reader's own
        return
    assert arguments[0] == "-m"
    module, *rest = arguments[1:]
    assert importlib.util.find_spec(module) is not None
    subcommand = [word for word in rest[:1] if not word.startswith("-")]
    help_of = [sys.executable, "-m", module, *subcommand, "--help"]
    shown = subprocess.run(help_of, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert {word for word in rest if word.startswith("--")} <= set(re.findall(r"--[\w-]+", shown))


def check_launch(arguments: list[str], whole: bool) -> None:
    # test_bpslaunch.py tests that it works.
    assert arguments == [] or arguments == ["python", "train.py"]


def check_torchrun(arguments: list[str], whole: bool) -> None:
    # tests/plugins/torch tests that such a job is Prophet's.
    pytest.importorskip("torch")
    from torch.distributed.run import get_args_parser

    if whole:
        assert get_args_parser().parse_args(arguments).training_script == "train.py"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_python_snippets_import_is_there(page: Path) -> None:
    for text in blocks(page, "python"):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("prophet_"):
                module = importlib.import_module(node.module)
                for alias in node.names:
                    has = hasattr(module, alias.name) or importlib.util.find_spec(f"{node.module}.{alias.name}")
                    assert has, f"{node.module} has no {alias.name}"


def test_the_config_that_explains_the_keys_is_one(tmp_path: Path) -> None:
    text = blocks(ROOT / "docs/experiments.md", "yaml")[0]
    file = tmp_path / "my-experiment.yaml"
    raw = yaml.safe_load(text)
    del raw["job"]["device"]  # stands where backward_s and forward_s would be left out
    file.write_text(yaml.safe_dump(raw), encoding="utf-8")
    assert load_experiment(file).name == "my-experiment"
