"""Reports of a running worker: a status on request, metrics for Prometheus, a record."""
