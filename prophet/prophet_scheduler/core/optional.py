"""Packages that only some commands need: where they are imported, and what is said where they are not installed.

Rule of this file: a table of what to install, and one way to import it. No command is refused for a package that it
can do without.
"""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.files import whole_file

INSTALL = {
    "jinja2": "pip install jinja2",
    "matplotlib": "pip install matplotlib",
    "plotly": "pip install plotly",
    "scipy": "pip install scipy",
    "sklearn": "pip install scikit-learn",
    "torch": "pip install torch",
    # MXNet 1.9.1 uses np.bool, which NumPy 1.24 removed.
    "mxnet": "pip install mxnet==1.9.1 numpy==1.23.5",
}
"""Commands that install each from the index, by the name of its module."""


class MissingPackage(UserError):
    """A package that this machine's Python lacks; the message says what needs it and how it is installed."""


def require(*needs: tuple[str, str]) -> None:
    """Raises MissingPackage that names each package that is not installed, of pairs (one of INSTALL, what for). None is
    imported.
    """
    missing: dict[str, list[str]] = {}
    for package, purpose in needs:
        if importlib.util.find_spec(package) is None:
            missing.setdefault(purpose, []).append(package)
    if missing:
        lacks = "; ".join(
            f"{purpose}: {' and '.join(packages)} {'are' if len(packages) > 1 else 'is'} not installed"
            for purpose, packages in missing.items()
        )
        packages = dict.fromkeys(package for packages in missing.values() for package in packages)
        names = dict.fromkeys(INSTALL[package].removeprefix("pip install ") for package in packages)
        raise MissingPackage(f"{lacks}; `pip install {' '.join(names)}`")


def need(module: str, purpose: str) -> ModuleType:
    """Import `module`, a part of a package in INSTALL, for `purpose`, which begins the message: "figures", say.

    Raises MissingPackage where it is not installed, or cannot be imported as it is.
    """
    package = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        reason = f"{error.name} is not installed"
    except ImportError as error:  # it is there, and does not fit what it was installed beside
        reason = f"{package} cannot be imported ({str(error).strip().splitlines()[0]})"
    raise MissingPackage(f"{purpose}: {reason}; `{INSTALL[package]}`")


def need_pyplot(purpose: str = "figures") -> Any:
    """matplotlib's pyplot, set up to draw into files and without a screen. Raises MissingPackage."""
    need("matplotlib", purpose).use("Agg")
    return need("matplotlib.pyplot", purpose)


def save_figure(figure: Any, path: Path) -> None:
    """Writes a figure of matplotlib in the format of the file's name, whole or not at all. Raises OSError."""
    with whole_file(path) as file:
        figure.savefig(file, dpi=150, format=path.suffix.removeprefix(".") or "png")
