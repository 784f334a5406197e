"""Engines, which move a job's gradients. Each package describes one in its `ENGINE`; registry.py finds all engines."""
