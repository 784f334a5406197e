"""Programs for tests and the soak are compiled once, and again if their sources or options change."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from tools import native_stress
from tools.native_stress import KEPT_S, build


def answer(program: Path) -> int:
    return subprocess.run([str(program)]).returncode


def test_it_is_compiled_again_where_a_header_or_an_option_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout, cache = tmp_path / "checkout", tmp_path / "cache"
    checkout.mkdir()
    monkeypatch.setattr(native_stress, "ROOT", checkout)
    source, header = checkout / "answer.cc", checkout / "answer.h"
    source.write_text('#include "answer.h"\nint main() { return ANSWER; }\n')

    def answers(*flags: str) -> tuple[int, int]:
        """Return the program's output, and the number of kept programs."""
        program = build(tmp_path / "answer", source, *flags, cache=cache)
        return answer(program), len(list(cache.iterdir()))

    header.write_text("#define ANSWER 1\n")
    assert [answers(), answers()] == [(1, 1), (1, 1)]
    header.write_text("#define ANSWER 2\n")
    assert answers() == (2, 2)
    assert answers("-O2") == (2, 3)
    header.write_text("#define ANSWER 1\n")
    assert answers() == (1, 3)


def test_a_checkout_elsewhere_has_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one", "two"):
        checkout = tmp_path / name
        checkout.mkdir()
        (checkout / "answer.cc").write_text("int main() {}\n")
        monkeypatch.setattr(native_stress, "ROOT", checkout)
        monkeypatch.chdir(checkout)
        build(tmp_path / "answer", checkout / "answer.cc", cache=tmp_path / "cache")
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_what_nobody_asks_for_goes_when_there_is_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, source = tmp_path / "cache", tmp_path / "answer.cc"
    monkeypatch.setattr(native_stress, "ROOT", tmp_path)
    source.write_text("int main() {}\n")
    build(tmp_path / "answer", source, cache=cache)
    (old,) = cache.iterdir()
    long_ago = time.time() - KEPT_S - 60.0
    os.utime(old, (long_ago, long_ago))
    build(tmp_path / "answer", source, "-O2", cache=cache)
    assert old not in cache.iterdir() and len(list(cache.iterdir())) == 1
