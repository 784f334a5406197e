"""Builds prophet-mlfabric, whose version is core's."""

from pathlib import Path
from runpy import run_path

from setuptools import setup

ABOUT = run_path(str(Path(__file__).parents[2] / "packages" / "about.py"))

setup(**ABOUT["COMMON"], install_requires=[f"prophet-scheduler=={ABOUT['VERSION']}"])
