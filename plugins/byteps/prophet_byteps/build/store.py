"""Store of built wheels of BytePS: one folder a recipe, in the user's cache folder.

    <cache>/prophet/engine/
        source/           BytePS's source release, as fetched
        <key>/            the wheel built by the recipe with this key
        .build-*          a build under way; becomes <key> in one step when it is complete
        .lock             held by the one process that builds
        last-build.log    all the compiler said in the last build

Nothing half-made is ever visible under a key. The next build removes what an interrupted one left behind.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Store:
    """The cached engines of one user, under `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.log = root / "last-build.log"
        self.source = root / "source"

    @classmethod
    def of_user(cls) -> Store:
        """Return the store in the user's cache folder: $XDG_CACHE_HOME, by default ~/.cache."""
        # An empty or relative XDG_CACHE_HOME is to be ignored (XDG Base Directory Specification).
        base = Path(os.environ.get("XDG_CACHE_HOME", ""))
        return cls((base if base.is_absolute() else Path.home() / ".cache") / "prophet" / "engine")

    def wheel(self, key: str) -> Path | None:
        """Return the wheel kept under `key`, or None."""
        return next(iter((self.root / key).glob("*.whl")), None)

    def holds(self, wheel: Path) -> bool:
        """True if `wheel` is, or was before it was removed, a wheel of this store."""
        return wheel.is_relative_to(self.root)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Wait until no other process builds, and keep others from building."""
        self.root.mkdir(parents=True, exist_ok=True)
        with (self.root / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    @contextmanager
    def workplace(self) -> Iterator[Path]:
        """Make a folder to build in, gone at the end however that comes. Needs the lock."""
        for left_over in self.root.glob(".build-*"):
            shutil.rmtree(left_over)
        with tempfile.TemporaryDirectory(prefix=".build-", dir=self.root) as folder:
            yield Path(folder)

    def keep(self, wheel: Path, key: str) -> Path:
        """Put a wheel from a workplace under `key`, in one step, and return where it is now. Needs the lock."""
        folder = wheel.parent / key
        folder.mkdir()
        wheel.rename(folder / wheel.name)
        return folder.replace(self.root / key) / wheel.name

    def clear(self) -> None:
        """Remove every kept engine and source."""
        shutil.rmtree(self.root, ignore_errors=True)
