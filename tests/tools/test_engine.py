"""The CPU engine without building it: its rules, what its cache depends on, and what is said when things lack."""

from __future__ import annotations

import dataclasses
import hashlib
import io
from pathlib import Path

import pytest
from prophet.tools.engine import __main__ as command
from prophet.tools.engine import build, recipe, toolchain
from prophet.tools.engine.recipe import RULES, recipe_for
from prophet.tools.engine.rules import Rule, apply_rules
from prophet.tools.engine.store import Store
from prophet.tools.engine.toolchain import Toolchain, ZeroMQ
from rich.console import Console

from prophet.errors import UserError

RULE = Rule("a/b.h", "old", "new", "because")
TOOLS = Toolchain("g++ 12.2", "-march=x86-64-v3", ZeroMQ(Path("/x/zmq.h"), Path("/x/libzmq.so"), "4.3.4"), "2.13.0")


def source(folder: Path, text: str) -> Path:
    (folder / "a").mkdir()
    (folder / "a/b.h").write_text(text)
    return folder


def test_a_rule_replaces_what_it_names(tmp_path: Path) -> None:
    apply_rules([RULE, dataclasses.replace(RULE, old="new", new="newer")], source(tmp_path, "an old line"))
    assert (tmp_path / "a/b.h").read_text() == "an newer line"


@pytest.mark.parametrize(("text", "found"), [("nothing", 0), ("old and old", 2)])
def test_a_rule_that_no_longer_fits_is_an_error_that_names_it(tmp_path: Path, text: str, found: int) -> None:
    with pytest.raises(UserError, match=rf"a/b.h: an edit expects 'old' 1 time\(s\) but the source has it {found}"):
        apply_rules([RULE], source(tmp_path, text))
    assert (tmp_path / "a/b.h").read_text() == text


def test_a_rule_for_a_file_that_is_gone_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="expects this file but the source has none"):
        apply_rules([RULE], tmp_path)


def test_every_rule_says_why_and_changes_something() -> None:
    for rule in RULES:
        assert len(rule.reason) > 5
        assert rule.old != rule.new
        assert not Path(rule.file).is_absolute()


def test_the_key_depends_on_everything_that_shapes_the_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    key = recipe_for(TOOLS).key()
    assert key == recipe_for(TOOLS).key()
    changed_tools = [
        dataclasses.replace(TOOLS, compiler="g++ 13.1"),
        dataclasses.replace(TOOLS, machine_flags=""),
        dataclasses.replace(TOOLS, torch="2.14.0"),
        dataclasses.replace(TOOLS, zmq=dataclasses.replace(TOOLS.zmq, version="4.3.5")),
    ]
    keys = {recipe_for(tools).key() for tools in changed_tools}
    keys |= {recipe_for(TOOLS, [*RULES, RULE]).key(), recipe_for(TOOLS, RULES[1:]).key()}
    monkeypatch.setattr(recipe, "BUILD_ENVIRONMENT", {})
    keys.add(recipe_for(TOOLS).key())
    assert len(keys | {key}) == 8


def test_a_reason_does_not_shape_the_wheel() -> None:
    reworded = [dataclasses.replace(rule, reason="in other words") for rule in RULES]
    assert recipe_for(TOOLS, reworded).key() == recipe_for(TOOLS).key()


def test_a_wheel_is_kept_under_its_key_and_leftovers_go(tmp_path: Path) -> None:
    store = Store(tmp_path / "engine")
    with store.locked():
        left_over = store.root / ".build-interrupted"
        left_over.mkdir()
        with store.workplace() as workplace:
            assert not left_over.exists()
            wheel = workplace / "byteps.whl"
            wheel.write_text("a wheel")
            kept = store.keep(wheel, "key")
    assert kept.read_text() == "a wheel"
    assert store.wheel("key") == kept
    assert store.wheel("another") is None
    assert store.holds(kept)
    assert sorted(path.name for path in store.root.iterdir()) == [".lock", "key"]
    store.clear()
    assert not store.root.exists()


def test_a_source_that_is_not_the_published_one_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)
    store.source.mkdir()
    archive = store.source / f"byteps-{recipe.BYTEPS_VERSION}.tar.gz"
    archive.write_bytes(b"something else")
    console = Console(file=io.StringIO())
    with pytest.raises(UserError, match="not the file that was published; it has been removed"):
        build.fetch(store, console)
    assert not archive.exists()
    archive.write_bytes(b"the release")
    monkeypatch.setattr(build, "BYTEPS_SHA256", hashlib.sha256(b"the release").hexdigest())
    assert build.fetch(store, console) == archive


def test_missing_packages_are_one_line_with_the_command_that_installs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain.shutil, "which", lambda name: None)
    monkeypatch.setattr(toolchain, "find_zmq", lambda: None)
    with pytest.raises(UserError, match=r"lacks g\+\+, make, libzmq3-dev; .*: apt-get install g\+\+ make libzmq3-dev"):
        toolchain.find_toolchain()


def test_a_byteps_of_the_users_own_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "_installed_from", lambda: Path("/somewhere/byteps"))
    with pytest.raises(UserError, match="has a BytePS of its own"):
        build.install(Store(tmp_path), Console(file=io.StringIO()))


@pytest.mark.parametrize(
    ("machine", "flags", "expected"),
    [
        ("x86_64", "abm avx avx2 bmi1 bmi2 f16c fma movbe sse", "-march=x86-64-v3"),
        ("x86_64", "sse avx", ""),
        ("aarch64", "asimd", ""),
    ],
)
def test_the_wheel_suits_more_than_one_processor(machine: str, flags: str, expected: str) -> None:
    assert toolchain.machine_flags(machine, flags.split()) == expected


def test_the_command_ends_with_status_2_and_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(store: Store, console: Console) -> None:
        raise UserError("engine: something is missing")

    monkeypatch.setattr(command, "install", fail)
    assert command.main(["install"]) == 2
    assert capsys.readouterr().err == "prophet: engine: something is missing\n"
