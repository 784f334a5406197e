"""Experiments: a YAML config in; processes on a shaped network; results, figures and traces out.

`config` reads, `runner` runs, `results` counts, `figures` and `trace` draw. `jobs` holds the training
scripts that the workers run; they are ordinary programs of their framework. What moves the gradients of a job
is engines.
"""
