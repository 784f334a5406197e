"""Experiments: read a YAML config, run processes on a shaped network, write results and figures.

`config` reads, `runner` runs, `results` computes, `figures` draws. `jobs` holds the workers' training scripts, which
are ordinary programs of their framework. The engines move a job's gradients.
"""
