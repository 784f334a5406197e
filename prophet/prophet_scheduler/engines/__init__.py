"""Engines, which move a job's gradients: a package each, with its description as `ENGINE`; registry.py finds all."""
