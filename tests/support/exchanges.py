"""Exchanges for tests that sum pages themselves."""

from __future__ import annotations

from collections.abc import Iterable

from prophet_byteps.agreement import PAGE_BYTES, Answer


class QuietExchange:
    """Exchange of a program with nothing under way; callers poll for pages."""

    def under_way(self) -> bool:
        return False

    def pages_under_way(self) -> bool:
        return False

    def begin_anew(self) -> None: ...


def summed(pages: Iterable[bytes]) -> bytes:
    return bytes(sum(values) for values in zip(*pages, strict=True))


class Server:
    """Sums pages as BytePS's server does: the first push of a round overwrites what the last round left."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.declared: list[list[str]] = [[] for _ in range(workers)]
        self.pages: dict[str, list[bytes]] = {}
        self.unread: dict[str, set[int]] = {}
        self.sent: list[tuple[int, str]] = []
        self.noise: bytes | None = None

    def push(self, rank: int, name: str, page: bytes) -> Answer:
        assert len(page) == PAGE_BYTES
        assert name in self.declared[rank]
        self.sent.append((rank, name))
        pages = self.pages.setdefault(name, [])
        if len(pages) == self.workers:
            assert not self.unread[name], f"{name} is overwritten before workers {self.unread[name]} have read it"
            pages.clear()
        pages.append(page)
        self.unread[name] = set(range(self.workers))
        page_sum: bytes | None = None

        def answer() -> bytes | None:
            nonlocal page_sum
            if page_sum is None and len(self.pages[name]) == self.workers:
                self.unread[name].discard(rank)
                page_sum = summed(self.pages[name]) if self.noise is None else self.noise
            return page_sum

        return answer


class Line(QuietExchange):
    """A worker's exchange with the server."""

    def __init__(self, server: Server, rank: int) -> None:
        self.server, self.rank = server, rank

    def declare(self, name: str) -> None:
        if name not in self.server.declared[self.rank]:
            self.server.declared[self.rank].append(name)

    def send(self, name: str, page: bytes) -> Answer:
        return self.server.push(self.rank, name, page)
