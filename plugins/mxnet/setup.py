"""Builds prophet-mxnet, whose version is core's."""

from pathlib import Path
from runpy import run_path

from setuptools import setup

ABOUT = run_path(str(Path(__file__).parents[2] / "packages" / "about.py"))

# MXNet's last release uses np.bool, which NumPy 1.24 removed. Nothing else needs such an old NumPy, and Python 3.12 and
# later have none.
MXNET = [f"{package}; python_version < '3.12'" for package in ("mxnet==1.9.1", "numpy==1.23.5", "setuptools", "wheel")]

setup(**ABOUT["COMMON"], install_requires=[f"prophet-scheduler=={ABOUT['VERSION']}", *MXNET])
