"""BytePS's partition size, set back in a library that the test compiles."""

from __future__ import annotations

import ctypes
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from prophet_byteps import partition
from prophet_scheduler.core.cut import MOST_BLOCK_BYTES, Cut
from prophet_scheduler.core.settings import BYTEPS_PARTITION_BYTES, CHOSEN, Settings
from prophet_scheduler.frontends.ending import WRONG
from prophet_scheduler.policies import Blocks
from support.ending import ProcessEnded, end_process
from tools.native_stress import build

SOURCE = """
#include <cstdint>
namespace byteps { namespace common { struct BytePSGlobal { static uint32_t _partition_bytes; };
uint32_t BytePSGlobal::_partition_bytes = 131072; } }
"""


@pytest.fixture(params=[SOURCE, "int nothing;"], ids=["known", "unknown"])
def bps(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    library = tmp_path / "c_lib.so"
    source = tmp_path / "part.cc"
    source.write_text(request.param)
    build(library, source, "-shared", "-fPIC")

    monkeypatch.setattr(partition, "end_process", end_process)
    for name in (BYTEPS_PARTITION_BYTES, CHOSEN):
        monkeypatch.setenv(name, "131072")
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
        with pytest.raises(ProcessEnded, match="too small; set BYTEPS_PARTITION_BYTES=4096000 on all workers") as ended:
            partition.give_back(bps, largest_sent=0)
        assert ended.value.status == WRONG


def test_a_size_set_by_the_user_stays(bps: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CHOSEN)
    partition.give_back(bps, largest_sent=0)
    if bps.known:
        assert size(bps) == 131072


def test_it_is_too_late_once_a_tensor_has_been_cut(bps: Any) -> None:
    with pytest.raises(ProcessEnded, match="set BYTEPS_PARTITION_BYTES=4096000 on all workers"):
        partition.give_back(bps, largest_sent=131073)
    if bps.known:
        assert size(bps) == 131072


@pytest.mark.parametrize(
    ("blocks", "framework", "size"),
    [
        (Blocks.ONE_SIZE, "torch", 128 * 1024),
        (Blocks.ONE_SIZE, "mxnet", 128 * 1024),
        (Blocks.WHOLE, "torch", MOST_BLOCK_BYTES),
        (Blocks.WHOLE, "mxnet", MOST_BLOCK_BYTES),
        (Blocks.ADAPTIVE, "torch", MOST_BLOCK_BYTES),
        (Blocks.ADAPTIVE, "mxnet", 512 * 1024),
    ],
)
def test_the_policy_decides_the_sizes_of_blocks(blocks: Blocks, framework: str, size: int) -> None:
    sizes = partition.sizes_of(Settings("some"), blocks, framework)
    adaptive = blocks is Blocks.ADAPTIVE
    assert (sizes.partition_bytes, sizes.fusion) == (size, blocks is not Blocks.WHOLE)
    assert sizes.fixed == (None if adaptive else Cut.uniform(size))
    words = "blocks that adapt" if adaptive else f"blocks of {size} bytes"
    assert str(sizes) == f"{words}, fusion {'on' if sizes.fusion else 'off'}"


@pytest.mark.parametrize("blocks", Blocks)
@pytest.mark.parametrize(("size", "in_arena"), [(1, 4096), (200_000, 196_608), (1 << 20, 1 << 20), (10**8, 4_096_000)])
def test_a_size_that_the_user_has_set_is_one_size_for_all(blocks: Blocks, size: int, in_arena: int) -> None:
    sizes = partition.sizes_of(Settings("some", partition_bytes=size), blocks, "torch")
    assert (sizes.partition_bytes, sizes.fixed) == (size, Cut.uniform(in_arena))
    assert str(sizes).startswith(f"blocks of {size} bytes")
