"""Estimators of a job's gradients and network, from its events."""
