"""Store of built BytePS wheels: one folder for each recipe, in the user's cache folder.

    <cache>/prophet/engine/
        source/           BytePS's source release, as fetched
        <key>/            the wheel built by the recipe with this key
        .build-*          a build in progress; becomes <key> in one step when it is complete
        .lock             held by the one process that builds
        last-build.log    all output of the last build

Nothing incomplete is ever visible under a key. The next build removes what an interrupted build left behind.
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
        # An empty or relative XDG_CACHE_HOME must be ignored (XDG Base Directory Specification).
        base = Path(os.environ.get("XDG_CACHE_HOME", ""))
        return cls((base if base.is_absolute() else Path.home() / ".cache") / "prophet" / "engine")

    def wheel(self, key: str) -> Path | None:
        """Return the wheel kept under `key`, or None."""
        return next(iter((self.root / key).glob("*.whl")), None)

    def holds(self, wheel: Path) -> bool:
        """Return True if `wheel` is, or was before its removal, a wheel of this store."""
        return wheel.is_relative_to(self.root)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Wait until no other process builds, and keep others from building meanwhile."""
        self.root.mkdir(parents=True, exist_ok=True)
        with (self.root / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    @contextmanager
    def workplace(self) -> Iterator[Path]:
        """Make a folder to build in, which is always removed at the end. Needs the lock."""
        for left_over in self.root.glob(".build-*"):
            shutil.rmtree(left_over)
        with tempfile.TemporaryDirectory(prefix=".build-", dir=self.root) as folder:
            yield Path(folder)

    def keep(self, wheel: Path, key: str) -> Path:
        """Move a wheel from a workplace to `key`, in one step, and return its new path. Needs the lock."""
        folder = wheel.parent / key
        folder.mkdir()
        wheel.rename(folder / wheel.name)
        return folder.replace(self.root / key) / wheel.name

    def clear(self) -> None:
        """Remove every kept engine and source."""
        shutil.rmtree(self.root, ignore_errors=True)
