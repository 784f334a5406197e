"""byteps.torch of the BytePS without a library."""

from __future__ import annotations


class Compression:
    none = None


def init(lazy: bool = True) -> str:
    return "started"


def shutdown() -> None: ...


def suspend() -> None: ...


def resume(*arguments: object) -> str:
    return "resumed"


def size() -> int:
    return 1


def DistributedOptimizer(*arguments: object) -> str:
    return "stock"
