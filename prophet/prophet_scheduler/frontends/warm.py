"""Warm start: a job's results are kept in a file, and the next start of the same job begins with them.

Rule of this file: files and their folder. session/kept.py defines what is kept, and when it no longer holds.

Two jobs are the same if their gradients have the same sizes in forward order and the engine says that they run in the
same place: same policy and block settings, same number of machines, same network interface. Each process that learns
keeps its own measurements. The cut belongs to the job: the first rank's file decides, and the other ranks receive that
cut like any other. A bad file causes one warning, and the job starts without it. The file is removed, so that the next
start does not find it again.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from prophet_scheduler.core.cut import MOST_SEGMENT_BYTES, Cut
from prophet_scheduler.forks import free_in_forks

if TYPE_CHECKING:
    from prophet_scheduler.core.profile import Profile
    from prophet_scheduler.session.kept import Kept

MOST_FILES = 64
"""Maximum files in the folder; the oldest are removed. The file of a large model takes about 100 kB."""
PROVED_S = 30.0
"""Seconds that a cut must be in force before it is written, in case the job is killed before its end."""

logger = logging.getLogger("prophet_scheduler")


class WarmStart:
    """Store of a job's results. Thread-safe; nothing here raises.

    `folder`: None to keep nothing. `where`: the properties of the place where the job runs that distinguish it from
    other jobs. `learning(sizes)`: the cut of a job without results. A `profile` from the user takes precedence over a
    kept one. `arena`: ids are places in the arena, not gradients. `most`: maximum bytes of a block.
    """

    def __init__(
        self,
        folder: Path | None,
        where: Mapping[str, str],
        learning: Callable[[Sequence[int]], Cut],
        profile: Profile | None = None,
        arena: bool = True,
        most: int = MOST_SEGMENT_BYTES,
    ) -> None:
        self._folder = folder
        self._where = where
        self._learning = learning
        self._profile = profile
        self._arena = arena
        self._most = most
        self._lock = free_in_forks(threading.Lock())
        self._sizes: tuple[int, ...] | None = None
        self._path: Path | None = None
        self._kept: Kept | None = None
        self._fresh: Kept | None = None
        self._cut: Cut | None = None
        self._cut_since = 0.0
        self._cut_is_kept = False

    def first_cut(self, sizes: Sequence[int]) -> Cut:
        """Return the cut with which this worker would begin, for gradients of these bytes in forward order.

        The first optimizer to ask gets the file; others start learning.
        """
        with self._lock:
            if self._sizes is None:
                self._sizes = tuple(sizes)
                try:
                    self._kept = self._fresh = self._begin(sizes)
                except Exception as error:
                    logger.warning("Prophet starts without kept results: %s: %s", type(error).__name__, error)
            if tuple(sizes) == self._sizes and self._kept is not None and self._kept.cut is not None:
                return self._kept.cut
        return self._learning(sizes)

    @property
    def asked(self) -> bool:
        """True if the sizes of the job's gradients are known."""
        return self._sizes is not None

    @property
    def kept(self) -> Kept | None:
        """Results with which the job began; None if there were none, or the job's sizes are not known yet."""
        return self._kept

    def take(self) -> Kept | None:
        """Return the results to begin with; after the first call, None."""
        with self._lock:
            fresh, self._fresh = self._fresh, None
        return fresh

    def turn(self, now: float, cut: Cut | None, learned: Callable[[Cut | None], Kept | None]) -> None:
        """Keep the results of `learned(cut)` once `cut` has been in force for PROVED_S."""
        if cut != self._cut:
            self._cut, self._cut_since, self._cut_is_kept = cut, now, False
        elif not self._cut_is_kept and now - self._cut_since >= PROVED_S:
            kept = learned(cut)
            self._cut_is_kept = kept is not None
            self.keep(kept)

    def keep(self, kept: Kept | None) -> None:
        """Write the results atomically; None if there are none yet. A failure only causes a warning."""
        with self._lock:
            if self._path is None or self._sizes is None or kept is None:
                return
            try:
                from prophet_scheduler.core.files import write_whole
                from prophet_scheduler.session.kept import kept_to_json

                if kept.cut == self._learning(self._sizes):
                    kept = replace(kept, cut=None)  # So the next start learns again.
                self._path.parent.mkdir(parents=True, exist_ok=True)
                write_whole(kept_to_json(kept), self._path)
                remove_oldest(self._path.parent, MOST_FILES)
            except Exception as error:
                logger.warning("Prophet could not keep what it learned: %s: %s", type(error).__name__, error)
                self._path = None

    def _begin(self, sizes: Sequence[int]) -> Kept | None:
        from prophet_scheduler.core.files import read_text
        from prophet_scheduler.session.kept import Kept, kept_from_json, kept_name, with_ids_of_the_job

        kept: Kept | None = None
        if self._folder is not None:
            self._path = self._folder / f"{kept_name(sizes, self._where)}.json"
            try:
                kept = kept_from_json(read_text(self._path), self._most)
            except FileNotFoundError:
                pass
            except (OSError, ValueError) as error:
                logger.warning("Prophet starts without kept results: %s cannot be used (%s)", self._path, error)
                with contextlib.suppress(OSError):  # It may be a folder.
                    self._path.unlink()
        if self._profile is None:
            return kept
        profile = with_ids_of_the_job(self._profile, sizes, self._arena)
        if profile is None:
            logger.warning(
                "Prophet does not use PROPHET_PROFILE_IN: the profile has %s bytes in %s gradients, the job %s in %s",
                *(self._profile.total_bytes, len(self._profile.gradients), sum(sizes), len(sizes)),
            )
            return kept
        return replace(kept, profile=profile) if kept else Kept(profile)


def remove_oldest(folder: Path, most: int) -> None:
    """Remove all but the `most` newest JSON files in `folder`. Other processes may do so at the same time."""

    def written_s(path: Path) -> float:
        try:
            return path.stat().st_mtime
        except FileNotFoundError:
            return 0.0

    for path in sorted(folder.glob("*.json"), key=written_s, reverse=True)[most:]:
        path.unlink(missing_ok=True)
