"""The CPU build of BytePS without building it: its rules, what its cache depends on, what is said when things lack."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import io
import os
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from prophet_byteps.build import __main__ as command
from prophet_byteps.build import build, build_hooks, recipe, toolchain
from prophet_byteps.build.recipe import RULES, key_of
from prophet_byteps.build.rules import VERSION, Rule, apply_rules, rules_of
from prophet_byteps.build.store import Store
from prophet_scheduler.core.errors import UserError
from support.engine_builds import TOOLS, compile_nothing

RULE = Rule("a/b.h", "old", "new")
UNCORRECTED = rules_of(corrected=False)
QUIET = Console(file=io.StringIO())


def source(folder: Path, text: str) -> Path:
    (folder / "a").mkdir()
    (folder / "a/b.h").write_text(text)
    return folder


def test_a_rule_replaces_what_it_names(tmp_path: Path) -> None:
    apply_rules([RULE, dataclasses.replace(RULE, old="new", new="newer")], source(tmp_path, "an old line"))
    assert (tmp_path / "a/b.h").read_text() == "an newer line"


@pytest.mark.parametrize(("text", "count"), [("nothing", 0), ("old and old", 2)])
def test_a_rule_that_no_longer_fits_is_an_error_that_names_it(tmp_path: Path, text: str, count: int) -> None:
    with pytest.raises(UserError, match=rf"a/b.h: an edit expects 'old' 1 time\(s\) but the source has it {count}"):
        apply_rules([RULE], source(tmp_path, text))
    assert (tmp_path / "a/b.h").read_text() == text


def test_a_rule_for_a_file_that_is_gone_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="expects this file but the source has none"):
        apply_rules([RULE], tmp_path)


def test_every_rule_changes_something() -> None:
    for rule in RULES:
        assert rule.old != rule.new
        assert not Path(rule.file).is_absolute()


def test_the_key_depends_on_everything_that_shapes_the_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    key = key_of(TOOLS)
    assert key == key_of(TOOLS)
    changes: list[dict[str, Any]] = [
        *({"compiler": "g++ 13.1"}, {"machine_flags": ""}, {"zmq": dataclasses.replace(TOOLS.zmq, version="4.3.5")}),
        *({name: version} for name in ("torch", "mxnet") for version in ("9.9", None)),
    ]
    keys = {key_of(dataclasses.replace(TOOLS, **change)) for change in changes}
    keys |= {key_of(TOOLS, [*RULES, RULE]), key_of(TOOLS, RULES[1:])}
    monkeypatch.setattr(recipe, "PARTS", {})
    keys.add(key_of(TOOLS))
    assert len(keys | {key}) == 11


@pytest.mark.parametrize(
    ("torch", "mxnet", "parts", "switches"),
    [
        ("2.13.0", "1.9.1", ("torch", "mxnet"), ("WITH", "WITH")),
        ("2.13.0", None, ("torch",), ("WITH", "WITHOUT")),
        (None, "1.9.1", ("mxnet",), ("WITHOUT", "WITH")),
    ],
)
def test_parts_are_built_for_the_frameworks_that_are_there(
    torch: str | None, mxnet: str | None, parts: tuple[str, ...], switches: tuple[str, str]
) -> None:
    tools = dataclasses.replace(TOOLS, torch=torch, mxnet=mxnet)
    assert recipe.frameworks(tools) == parts
    names = (f"BYTEPS_{switches[0]}_PYTORCH", f"BYTEPS_{switches[1]}_MXNET", "BYTEPS_WITHOUT_TENSORFLOW")
    assert recipe.build_environment(tools) == dict.fromkeys(names, "1")


def test_missing_frameworks_and_build_tools_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(package: str) -> str:
        raise importlib.metadata.PackageNotFoundError(package)

    monkeypatch.setattr(importlib.metadata, "version", absent)
    with pytest.raises(UserError, match=r"needs torch, setuptools, wheel in this Python: pip install torch setuptools"):
        toolchain.find_toolchain()


def test_every_part_that_was_built_is_imported_in_a_process_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    imported: list[str] = []
    monkeypatch.setattr(build, "_installed_from", lambda: None)
    monkeypatch.setattr(build, "find_toolchain", lambda: TOOLS)
    monkeypatch.setattr(build, "provide", lambda *_: tmp_path / "byteps.whl")
    monkeypatch.setattr(build, "_pip", lambda *_, failure: None)

    def run(command: list[str], env: dict[str, str], **_: object) -> subprocess.CompletedProcess[str]:
        assert not {"BYTEPS_SCHEDULER", "DMLC_ROLE"} & set(env)
        imported.append(command[-1])
        return subprocess.CompletedProcess(command, int("mxnet" in command[-1]), "", "ImportError: a symbol\n")

    monkeypatch.setenv("BYTEPS_SCHEDULER", "prophet")
    monkeypatch.setenv("DMLC_ROLE", "worker")
    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(UserError, match=r"byteps\.mxnet as built cannot be imported: ImportError: a symbol"):
        build.install(Store(tmp_path), QUIET)
    assert imported == ["import byteps.torch", "import byteps.mxnet"]


@pytest.mark.parametrize(
    ("name", "abi"), [(b"RKSs", 0), (b"RKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE", 1)]
)
def test_the_strings_of_libmxnet_are_told_by_its_names(name: bytes, abi: int) -> None:
    assert build_hooks._string_abi(b"\x7fELF\0_ZN4nnvm2Op3GetE" + name + b"\0more") == abi


def test_a_libmxnet_with_unknown_strings_stops_the_build() -> None:
    with pytest.raises(ValueError, match=r"unknown C\+\+ ABI"):
        build_hooks._string_abi(b"\x7fELF\0_ZN4nnvm2Op3GetEPKc\0")


def test_mxnets_part_gets_the_strings_of_libmxnet_and_the_others_keep_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    source = tmp_path / "3rdparty/ps-lite"
    (source / "build").mkdir(parents=True)
    (source / "build/libps.a").write_text("with new strings")
    (source / "Makefile").write_text("ps:\n\tmkdir build && echo '$(ADD_CFLAGS)' > build/libps.a\n")
    library = tmp_path / "libmxnet.so"
    library.write_bytes(b"\0_ZN4nnvm2Op3GetERKSs\0")
    options = {
        "COMPILE_FLAGS": ["-O2", "-D_GLIBCXX_USE_CXX11_ABI=1"],
        "EXTRA_OBJECTS": ["3rdparty/ps-lite/build/libps.a", "3rdparty/ps-lite/deps/lib/libzmq.a"],
        "MACROS": [],
    }
    mended = build_hooks.options_for_mxnet(options, [str(library)])
    assert mended["COMPILE_FLAGS"] == ["-O2", "-D_GLIBCXX_USE_CXX11_ABI=0"]
    assert options["COMPILE_FLAGS"] == ["-O2", "-D_GLIBCXX_USE_CXX11_ABI=1"]
    built, zmq = mended["EXTRA_OBJECTS"]
    assert Path(built).read_text().strip() == "-D_GLIBCXX_USE_CXX11_ABI=0"
    assert zmq == options["EXTRA_OBJECTS"][1]
    assert (source / "build/libps.a").read_text() == "with new strings"


def test_the_uncorrected_engine_has_a_key_and_a_command_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    built = compile_nothing(monkeypatch, tmp_path)
    assert command.main(["path", "--uncorrected"]) == 2
    assert capsys.readouterr().err.endswith("run: python -m prophet_byteps.build build --uncorrected\n")
    assert command.main(["path"]) == 2
    assert capsys.readouterr().err.endswith("run: python -m prophet_byteps.build install\n")
    for options in ([], ["--uncorrected"], ["--uncorrected"]):
        assert command.main(["build", *options]) == 0
    corrected, uncorrected, again = capsys.readouterr().out.splitlines()  # the paths and nothing else
    assert built == [(RULES, TOOLS), (UNCORRECTED, TOOLS)]
    assert corrected != uncorrected == again
    assert command.main(["path", "--uncorrected"]) == 0
    assert capsys.readouterr().out == f"{uncorrected}\n"
    assert Path(uncorrected).parent.name == key_of(TOOLS, UNCORRECTED)
    assert set(UNCORRECTED) < set(RULES)


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
    archive = store.source / f"byteps-{VERSION}.tar.gz"
    archive.write_bytes(b"something else")
    with pytest.raises(UserError, match="not the file that was published; it has been removed"):
        build.fetch(store, QUIET)
    assert not archive.exists()
    archive.write_bytes(b"the release")
    assert build.fetch(store, QUIET, hashlib.sha256(b"the release").hexdigest()) == archive


def archived(folder: Path, files: dict[str, str]) -> bytes:
    archive = folder / f"byteps-{VERSION}.tar.gz"
    with tarfile.open(archive, "w:gz") as packed:
        for name, text in files.items():
            entry = tarfile.TarInfo(f"byteps-{VERSION}/{name}")
            entry.size = len(text)
            packed.addfile(entry, io.BytesIO(text.encode()))
    return archive.read_bytes()


@pytest.mark.parametrize("way", ["setup.py, with its digest from the index", "a backend of its own", "right"])
def test_a_source_runs_only_after_its_digest_was_checked(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    index, mark = tmp_path / "index" / "byteps", tmp_path / "it has run"
    index.mkdir(parents=True)
    runs = f"open({str(mark)!r}, 'w').close()\n"
    files = {
        "setup.py": runs + f"from setuptools import setup\nsetup(name='byteps', version='{VERSION}')\n",
        "PKG-INFO": f"Metadata-Version: 1.0\nName: byteps\nVersion: {VERSION}\n",
    }
    if way == "a backend of its own":
        project = "[build-system]\nrequires = []\nbuild-backend = 'own'\nbackend-path = ['.']\n"
        files |= {"pyproject.toml": project, "own.py": runs}
    content = archived(index, files)
    digest = hashlib.sha256(content).hexdigest()
    if way.startswith("setup.py"):
        name = f"byteps-{VERSION}.tar.gz"
        (index / "index.html").write_text(f'<a href="{name}#sha256={digest}">{name}</a>')
        monkeypatch.setenv("PIP_INDEX_URL", index.parent.as_uri())
    else:
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    store = Store(tmp_path / "store")
    store.root.mkdir()
    if way == "right":
        assert build.fetch(store, QUIET, digest).read_bytes() == content
        assert mark.exists(), "pip has asked it for its metadata: the other ways show something"
        return
    with pytest.raises(UserError, match=r"the source of BytePS cannot be fetched: .*DO NOT MATCH THE HASHES") as error:
        build.fetch(store, QUIET)
    assert "\n" not in str(error.value)
    assert not mark.exists() and list(store.root.iterdir()) == []


def test_missing_packages_are_one_line_with_the_command_that_installs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(toolchain, "find_zmq", lambda: None)
    with pytest.raises(UserError, match=r"lacks g\+\+, make, libzmq3-dev; .*: apt-get install g\+\+ make libzmq3-dev"):
        toolchain.find_toolchain()


def test_a_byteps_of_the_users_own_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "_installed_from", lambda: Path("/somewhere/byteps"))
    with pytest.raises(UserError, match="already has another BytePS"):
        build.install(Store(tmp_path), QUIET)


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
