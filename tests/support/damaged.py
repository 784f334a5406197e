"""Damaged files, made from correct ones.

What belongs here: strategies of hypothesis for the content of files, and the demand on every reader of any file: return
a value, or fail with one line that names the file.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
from hypothesis import settings

from prophet_scheduler.core.errors import UserError

Place = tuple[str | int, ...]

fuzzed = settings(max_examples=max(20, settings().max_examples // 5))
"""Settings of a reader's test: short among the others, and long in `make fuzz`."""


def nested(depth: int) -> list[Any]:
    """Return lists in lists."""
    inner: list[Any] = []
    for _ in range(depth):
        inner = [inner]
    return inner


ODD: tuple[Any, ...] = (
    *(None, True, -1, 0, 1, 2**31, 2**64, 10**30, 0.5, -0.0, 1e-300, 1e15, 1e300, float("inf"), float("nan")),
    *("", "x", "\ud800", "two\nlines", "1e400", "\0", "a" * 5000, [], {}, [None], {"a": 1}, [[0, 1]], nested(60)),
)
"""Values to put in place of correct ones."""


def places(value: Any, place: Place = ()) -> Iterator[Place]:
    """Yield the place of every value in a document, the whole included."""
    yield place
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in inner:
        yield from places(part, (*place, key))


def changed_at(document: Any, place: Place, change: Callable[[Any, str | int], None], whole: Any) -> Any:
    """Return a copy with `change` made at `place`, on the part that contains it; `whole` if `place` is the whole."""
    if not place:
        return whole
    document = copy.deepcopy(document)
    part = document
    for key in place[:-1]:
        part = part[key]
    change(part, place[-1])
    return document


@st.composite
def documents(draw: st.DrawFn, right: Any) -> Any:
    """Make `right` with one to three values odd, gone or doubled."""
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.sampled_from(list(places(right))))
        odd = draw(st.sampled_from(ODD) | st.integers() | st.floats() | st.text(max_size=5))
        way = draw(st.sampled_from(["odd", "odd", "odd", "gone", "twice"]))

        def change(part: Any, key: Any, way: str = way, odd: Any = odd) -> None:
            if way == "gone":
                del part[key]
            elif way == "twice" and isinstance(part, list):
                part.insert(key, part[key])
            else:
                part[key] = odd

        right = changed_at(right, place, change, odd)
    return right


def contents(right: bytes) -> st.SearchStrategy[bytes]:
    """Return contents of a file: `right` cut short or with some other bytes, or random bytes."""

    def damage(parts: tuple[int, list[tuple[int, int]]]) -> bytes:
        length, others = parts
        content = bytearray(right[:length])
        for at, byte in others:
            if content:
                content[at % len(content)] = byte
        return bytes(content)

    other = st.tuples(st.integers(0, max(1, len(right))), st.integers(0, 255))
    cut = st.sampled_from([len(right), len(right)]) | st.integers(0, len(right))
    return st.tuples(cut, st.lists(other, max_size=4)).map(damage) | st.binary(max_size=200)


def json_files(right: Any) -> st.SearchStrategy[bytes]:
    """Return contents of a damaged JSON file."""
    text = json.dumps(right).encode()
    return documents(right).map(lambda document: json.dumps(document).encode()) | contents(text)


def read_or_refused(read: Callable[[Path], Any], path: Path, content: bytes, *more: type[Exception]) -> Any:
    """Return the value `read` makes of a file of this content; None if it refuses, in one line that names the file.

    `more` are other exceptions with which it may refuse.
    """
    path.write_bytes(content)
    ways: tuple[type[Exception], ...] = (UserError, *more)
    try:
        return read(path)
    except ways as error:
        line = str(error)
        assert path.name in line or more, line
        assert line and len(line) < 20_000, "and not the file's whole content"
        return None
