"""Where `--plot` leaves its figure.

What belongs here: the file, and every way it can be wrong as one line; what is drawn is each command's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prophet.core.errors import UserError
from prophet.core.files import placed

OPTION = "--plot"


def save_plot(figure: Any, path: Path) -> None:
    """Writes a figure of matplotlib, in the format of the file's name. Raises UserError."""
    if path.is_dir():  # a figure would lie beside it, under its name and another ending
        raise UserError(f"{OPTION}: {path} is a folder; name a file in it")
    try:
        figure.savefig(placed(path), dpi=150)
    except OSError as error:
        raise UserError(f"{OPTION}: {path} cannot be written ({error.strerror}); name another file") from None
    except ValueError as error:  # of a format that it does not have
        raise UserError(f"{OPTION}: {path}: {str(error).splitlines()[0]}") from None
