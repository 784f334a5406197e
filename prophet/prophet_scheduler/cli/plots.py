"""File for the figure of `--plot`.

What belongs here: the file, and a one-line error for each way in which it can be wrong. Each command draws its figure.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.files import placed, require_places
from prophet_scheduler.core.optional import MissingPackage, need, save_figure

OPTION = "--plot"


def require_plot(path: Path) -> None:
    """Raise UserError if no figure can be written to `path`; call this before any work.

    A missing matplotlib is reported only when drawing, because the rest of the command works without it.
    """
    require_places({OPTION: path})
    try:
        known = need("matplotlib.backend_bases", OPTION).FigureCanvasBase.get_supported_filetypes()
    except MissingPackage:
        return
    ending = path.suffix.removeprefix(".")
    if ending and ending.lower() not in known:
        raise UserError(f"{OPTION}: {path}: Format {ending!r} is not supported; name a file that ends in .png")


def save_plot(figure: Any, path: Path) -> None:
    """Write a matplotlib figure in the format of the file name's suffix. Raises UserError."""
    try:
        save_figure(figure, placed(path))
    except OSError as error:
        raise UserError(f"{OPTION}: {path} cannot be written ({error.strerror}); name another file") from None
