"""Where `--plot` leaves its figure.

What belongs here: the file, and every way it can be wrong as one line; what is drawn is each command's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.files import placed, require_places
from prophet_scheduler.core.optional import MissingPackage, need, save_figure

OPTION = "--plot"


def require_plot(path: Path) -> None:
    """Raises UserError where no figure can be written to `path`, before any work is done for it.

    That matplotlib is missing is said where it draws: the rest of the command can do without.
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
    """Writes a figure of matplotlib, in the format of the file's name. Raises UserError."""
    try:
        save_figure(figure, placed(path))
    except OSError as error:
        raise UserError(f"{OPTION}: {path} cannot be written ({error.strerror}); name another file") from None
