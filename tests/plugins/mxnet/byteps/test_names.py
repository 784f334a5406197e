"""Names that hang on how a tensor is cut: one name, one way, whatever sizes there were."""

from __future__ import annotations

import ctypes
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prophet_byteps.partition import Number
from prophet_mxnet.byteps.names import Names

STEP = 4096


def number_of(value: int) -> Number:
    """BytePS's, on a machine with one process."""
    return Number(ctypes.c_uint32(value), STEP)


@given(
    st.integers(1, 6), st.lists(st.integers(1, 6 * STEP), max_size=20), st.lists(st.integers(1, 8 * STEP), min_size=1)
)
def test_a_name_is_always_cut_in_one_way(first: int, sizes: list[int], tensors: list[int]) -> None:
    number, declared = number_of(first * STEP), list[str]()
    names = Names(declared.append, lambda: number, lambda: None)
    cut: dict[str, list[int]] = {}
    for size in [None, *sizes]:
        if size is not None:
            names.resize(size)
            assert number.value == number.rounded(size)
        for place, length in enumerate(tensors):
            name = names.current(f"gradient_{place}", length)
            parts = [min(number.value, length - start) for start in range(0, length, number.value)]
            assert cut.setdefault(name, parts) == parts
            assert name == f"gradient_{place}" or name in declared
    assert len(declared) == len(set(declared))
    # A tensor has as many names as ways in which it was cut, so a server keeps no more than it must.
    for place in range(len(tensors)):
        of_this = [tuple(parts) for name, parts in cut.items() if name.split(".")[0] == f"gradient_{place}"]
        assert len(of_this) == len(set(of_this))


def test_it_waits_for_what_is_under_way_before_the_size_changes() -> None:
    number, story = number_of(STEP), list[str]()
    names = Names(story.append, lambda: number, lambda: story.append(f"settled at {number.value}"))
    names.resize(STEP)
    names.resize(STEP - 1)  # what BytePS rounds to the same
    assert story == []
    names.resize(2 * STEP)
    assert story == [f"settled at {STEP}"]


def test_a_byteps_without_the_number_keeps_its_size_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    names = Names(lambda name: None, lambda: None, lambda: None)
    with caplog.at_level(logging.WARNING, logger="prophet_scheduler"):
        names.resize(STEP)
        names.resize(2 * STEP)
    assert names.current("gradient_0", 10 * STEP) == "gradient_0"
    assert len(caplog.records) == 1
