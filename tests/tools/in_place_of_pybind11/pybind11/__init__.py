"""Stands for pybind11 where setup.py is run without it."""
