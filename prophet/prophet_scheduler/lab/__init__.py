"""Experiments: read a YAML config, run processes on a shaped network, write results and reports.

`config` reads, `runner` runs, `results` computes, `report` draws. `jobs` has the workers' training scripts, which are
ordinary programs of their framework. The engines move a job's gradients.
"""
