"""What moves a job's gradients: a package an engine, each with its description as `ENGINE`; registry.py finds all."""
