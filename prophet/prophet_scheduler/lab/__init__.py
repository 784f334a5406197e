"""Experiments: a YAML config in; processes on a shaped network; results and figures out.

`config` reads, `runner` runs, `results` counts, `figures` draws. `jobs` holds the workers' training
scripts, which are ordinary programs of their framework. The engines move a job's gradients.
"""
