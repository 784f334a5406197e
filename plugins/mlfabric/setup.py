"""Builds prophet-mlfabric, whose version is core's."""

from pathlib import Path
from runpy import run_path

from setuptools import setup

VERSION = run_path(str(Path(__file__).parents[2] / "prophet" / "prophet_scheduler" / "__init__.py"))["__version__"]

setup(version=VERSION, install_requires=[f"prophet-scheduler=={VERSION}"])
