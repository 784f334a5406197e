"""Import of packages that only some commands need, and the error if they are not installed.

Rule of this file: a table of what to install, and one way to import it. No command fails for a package that it can do
without.
"""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType

from prophet_scheduler.core.errors import UserError

INSTALL = {
    "jinja2": "pip install jinja2",
    "plotly": "pip install plotly",
    "sklearn": "pip install scikit-learn",
    "torch": "pip install torch",
    # MXNet 1.9.1 uses np.bool, which NumPy 1.24 removed.
    "mxnet": "pip install mxnet==1.9.1 numpy==1.23.5",
}
"""Command that installs each package from the index, by module name."""


class MissingPackage(UserError):
    """A package that this Python lacks. The message says what needs it and how to install it."""


def require(*needs: tuple[str, str]) -> None:
    """Raise MissingPackage naming all packages that are not installed. `needs` has pairs of (package in INSTALL,
    purpose). This imports none of them.
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
    """Import and return `module` of a package in INSTALL. `purpose`, such as "figures", begins the error message.

    Raises MissingPackage if it is not installed or cannot be imported.
    """
    package = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        reason = f"{error.name} is not installed"
    except ImportError as error:  # installed, but incompatible with other packages
        reason = f"{package} cannot be imported ({str(error).strip().splitlines()[0]})"
    raise MissingPackage(f"{purpose}: {reason}; `{INSTALL[package]}`")
