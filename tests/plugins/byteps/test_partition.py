"""BytePS's partition size, set back in a library that the test compiles."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from prophet_byteps import partition
from prophet_byteps.ending import WRONG

SOURCE = """
#include <cstdint>
namespace byteps { namespace common { struct BytePSGlobal { static uint32_t _partition_bytes; };
uint32_t BytePSGlobal::_partition_bytes = 131072; } }
"""


class Ended(Exception):
    pass


@pytest.fixture(params=[SOURCE, "int nothing;"], ids=["known", "unknown"])
def bps(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    library = tmp_path / "c_lib.so"
    source = tmp_path / "part.cc"
    source.write_text(request.param)
    subprocess.run(["g++", "-shared", "-fPIC", "-o", library, source], check=True)

    def end(line: str, status: int) -> None:
        raise Ended(line, status)

    monkeypatch.setattr(partition, "end_process", end)
    monkeypatch.setattr(partition, "_ours", True)
    return SimpleNamespace(__file__=str(tmp_path / "__init__.py"), local_size=lambda: 3, known=request.param == SOURCE)


def size(bps: Any) -> int:
    name = "_ZN6byteps6common12BytePSGlobal16_partition_bytesE"
    path = str(Path(bps.__file__).with_name("c_lib.so"))
    return int(ctypes.c_uint32.in_dll(ctypes.CDLL(path), name).value)


def test_it_is_bytepss_own_rounded_as_byteps_rounds(bps: Any) -> None:
    if bps.known:
        partition.give_back(bps, largest_sent=131072)
        assert size(bps) == 4104192  # the next multiple of three pages
        partition.give_back(bps, largest_sent=10**9)  # done once, for good
    else:
        with pytest.raises(Ended, match="too small; set BYTEPS_PARTITION_BYTES=4096000 on all workers") as ended:
            partition.give_back(bps, largest_sent=0)
        assert ended.value.args[1] == WRONG


def test_what_the_user_chose_stays(bps: Any) -> None:
    partition.chosen_by_prophet(False)
    partition.give_back(bps, largest_sent=0)
    if bps.known:
        assert size(bps) == 131072


def test_it_is_too_late_once_a_tensor_has_been_cut(bps: Any) -> None:
    with pytest.raises(Ended, match="set BYTEPS_PARTITION_BYTES=4096000 on all workers"):
        partition.give_back(bps, largest_sent=131073)
    if bps.known:
        assert size(bps) == 131072
