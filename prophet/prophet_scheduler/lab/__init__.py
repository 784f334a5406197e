"""Experiments: a YAML config in; processes on a shaped network; results, figures and traces out.

`config` reads, `runner` runs, `results` counts, `figures` and `trace` draw. `jobs` holds the workers' training
scripts, which are ordinary programs of their framework. The engines move a job's gradients.
"""
